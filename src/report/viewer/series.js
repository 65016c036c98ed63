// Numbers over the whole history, and everything that there was at one position of it.
//
// The largest hole after each event comes from a tree over all addresses that ever began a block or bounded a region:
//
//                   gap, first, last                 a node knows the largest gap below it, where its first block
//                  /                \                begins and where its last one ends: the gap between two children
//        [region  [block   [block   region]          is that of their neighbours, unless a region ends there
//
// So each event costs O(log addresses), and 200,000 events take a few dozen milliseconds.

const REGION_END = 0,
  REGION_START = 1,
  BLOCK = 2;

class GapTree {
  /** `keys`: sorted, each once; a key is (address - base) * 4 + what lies there. */
  constructor(keys) {
    this.keys = keys;
    let size = 1;
    while (size < keys.length) size *= 2;
    this.size = size;
    this.first = new Float64Array(2 * size).fill(Infinity);
    this.last = new Float64Array(2 * size).fill(-Infinity);
    this.gap = new Float64Array(2 * size);
    this.closed = new Uint8Array(2 * size);
    this.owner = new Int32Array(size).fill(-1);
  }

  #leaf(key) {
    let low = 0,
      high = this.keys.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.keys[middle] < key) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  put(address, key, end, owner, closed) {
    const leaf = this.#leaf(key);
    this.owner[leaf] = owner;
    this.#set(leaf, address, end, closed);
  }

  /** Does nothing where somebody else has come in the meantime: moves of a compaction are not in order. */
  take(key, owner) {
    const leaf = this.#leaf(key);
    if (this.owner[leaf] !== owner) return;
    this.owner[leaf] = -1;
    this.#set(leaf, Infinity, -Infinity, 0);
  }

  #set(leaf, first, last, closed) {
    let node = leaf + this.size;
    this.first[node] = first;
    this.last[node] = last;
    this.closed[node] = closed;
    for (node >>= 1; node >= 1; node >>= 1) {
      const left = 2 * node,
        right = left + 1;
      if (this.first[left] === Infinity || this.first[right] === Infinity) {
        const only = this.first[left] === Infinity ? right : left;
        this.first[node] = this.first[only];
        this.last[node] = this.last[only];
        this.gap[node] = this.gap[only];
        this.closed[node] = this.closed[only];
        continue;
      }
      const between = this.closed[left] ? 0 : this.first[right] - this.last[left];
      this.gap[node] = Math.max(this.gap[left], this.gap[right], between);
      this.first[node] = this.first[left];
      this.last[node] = Math.max(this.last[left], this.last[right]);
      this.closed[node] = this.closed[right];
    }
  }

  get largest() {
    return this.gap[1];
  }
}

/** Fills `device.series`: a value for each position. Reads spans in the order in which they were opened. */
function measure(device) {
  const { spans, regions, slots, events, changes } = device;
  let base = Infinity;
  for (let i = 0; i < spans.rows; i++) base = Math.min(base, spans.address[i]);
  for (let i = 0; i < regions.rows; i++) base = Math.min(base, regions.address[i]);
  const keyOf = (address, what) => (address - base) * 4 + what;

  const all = new Float64Array(spans.rows + 2 * regions.rows);
  for (let i = 0; i < spans.rows; i++) all[i] = keyOf(spans.address[i], BLOCK);
  for (let i = 0, k = spans.rows; i < regions.rows; i++) {
    all[k++] = keyOf(regions.address[i], REGION_START);
    all[k++] = keyOf(regions.address[i] + regions.bytes[i], REGION_END);
  }
  all.sort();
  let unique = 0;
  for (let i = 0; i < all.length; i++) if (i === 0 || all[i] !== all[unique - 1]) all[unique++] = all[i];
  const tree = new GapTree(all.subarray(0, unique));

  const positions = events.rows + 1;
  const series = {};
  for (const name of ['inUse', 'pending', 'pinned', 'reserved', 'taken', 'pool', 'hole', 'peak'])
    series[name] = new Float64Array(positions);
  const now = { inUse: 0, pending: 0, pinned: 0, reserved: 0, taken: 0, pool: 0 };

  const count = (span, sign) => {
    const state = spans.state[span],
      slot = spans.slot[span];
    if (state === RESERVED) {
      now.reserved += sign * spans.bytes[span];
      return;
    }
    const requested = sign * slots.requested[slot];
    now.taken += sign * spans.bytes[span];
    if (state === PENDING) now.pending += requested;
    else now.inUse += requested;
    if (state === PINNED) now.pinned += requested;
  };
  const openSpan = (span) => {
    count(span, 1);
    const at = spans.address[span];
    if (spans.bytes[span] > 0) tree.put(at, keyOf(at, BLOCK), at + spans.bytes[span], span, 0);
  };
  const closeSpan = (span) => {
    count(span, -1);
    if (spans.bytes[span] > 0) tree.take(keyOf(spans.address[span], BLOCK), span);
  };
  const openRegion = (region) => {
    const at = regions.address[region],
      end = at + regions.bytes[region];
    now.pool += regions.bytes[region];
    tree.put(at, keyOf(at, REGION_START), at, region, 0);
    tree.put(end, keyOf(end, REGION_END), end, region, 1);
  };
  const closeRegion = (region) => {
    const at = regions.address[region];
    now.pool -= regions.bytes[region];
    tree.take(keyOf(at, REGION_START), region);
    tree.take(keyOf(at + regions.bytes[region], REGION_END), region);
  };
  const write = (position) => {
    for (const name in now) series[name][position] = now[name];
    series.peak[position] = Math.max(now.inUse, position ? series.peak[position - 1] : 0);
    series.hole[position] = unique ? Math.max(0, tree.largest) : 0;
  };

  for (let i = 0; i < regions.rows && regions.from[i] === 0; i++) openRegion(i);
  for (let i = 0; i < spans.rows && spans.from[i] === 0; i++) openSpan(i);
  write(0);
  for (let i = 0; i < events.rows; i++) {
    const ofRegions = events.kind[i] === EVENT.region || events.kind[i] === EVENT.regionGone;
    if (changes.closed[i] >= 0) (ofRegions ? closeRegion : closeSpan)(changes.closed[i]);
    if (changes.opened[i] >= 0) (ofRegions ? openRegion : openSpan)(changes.opened[i]);
    write(i + 1);
  }
  device.series = series;
}

/** 1 - largest hole / free, 0 where nothing is free. */
function fragmentation(hole, free) {
  return free > 0 ? Math.min(1, Math.max(0, 1 - hole / free)) : 0;
}

function freeAt(series, position) {
  return Math.max(0, series.pool[position] - series.taken[position] - series.reserved[position]);
}

/** What there is at one position: `spans` and `regions`, both in the order of their addresses, and sums. */
class View {
  constructor(device) {
    this.device = device;
    this.spans = new Uint32Array(1024);
    this.regions = new Uint32Array(16);
    this.count = 0;
    this.regionCount = 0;
    this.position = -1;
  }

  seek(position) {
    const { spans, regions } = this.device;
    this.position = Math.max(0, Math.min(this.device.count, Math.round(position)));
    this.count = 0;
    this.regionCount = 0;
    const at = this.position,
      { from, to } = spans;
    for (let i = 0; i < spans.rows; i++) {
      if (from[i] <= at && at < to[i]) {
        if (this.count === this.spans.length) this.spans = grown(this.spans);
        this.spans[this.count++] = i;
      }
    }
    for (let i = 0; i < regions.rows; i++) {
      if (regions.from[i] <= at && at < regions.to[i]) {
        if (this.regionCount === this.regions.length) this.regions = grown(this.regions);
        this.regions[this.regionCount++] = i;
      }
    }
    this.#findHoles();
    return this;
  }

  #findHoles() {
    this.holes = 0;
    this.largestHole = { address: 0, bytes: 0 };
    this.eachHole((address, bytes) => {
      this.holes++;
      if (bytes > this.largestHole.bytes) this.largestHole = { address, bytes };
    });
  }

  /** Calls `visit(address, bytes)` for each stretch of a region that no block holds, by address. */
  eachHole(visit) {
    const { spans, regions } = this.device;
    let next = 0;
    for (let r = 0; r < this.regionCount; r++) {
      const region = this.regions[r];
      const end = regions.address[region] + regions.bytes[region];
      let reached = regions.address[region];
      while (next < this.count && spans.address[this.spans[next]] < reached) next++;
      for (; next < this.count && spans.address[this.spans[next]] < end; next++) {
        const at = spans.address[this.spans[next]];
        if (at > reached) visit(reached, at - reached);
        reached = Math.max(reached, at + spans.bytes[this.spans[next]]);
      }
      if (end > reached) visit(reached, end - reached);
    }
  }

  /** The `most` largest holes, largest first. */
  largestHoles(most) {
    const found = [];
    this.eachHole((address, bytes) => found.push({ address, bytes }));
    return found.sort((a, b) => b.bytes - a.bytes).slice(0, most);
  }

  get numbers() {
    const { series, limit } = this.device,
      at = this.position;
    const free = freeAt(series, at),
      hole = this.largestHole.bytes;
    return {
      inUse: series.inUse[at],
      pending: series.pending[at],
      pinned: series.pinned[at],
      reserved: series.reserved[at],
      slack: Math.max(0, series.taken[at] - series.inUse[at] - series.pending[at]),
      pool: series.pool[at],
      free,
      hole,
      holes: this.holes,
      limit,
      fragmentation: fragmentation(hole, free),
      time: this.device.timeAt(at),
    };
  }

  /** Index in `spans` of the last block that begins at or below `address`; -1 where none does. */
  indexAt(address) {
    const { spans } = this.device;
    let low = -1,
      high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (spans.address[this.spans[middle]] <= address) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** For each origin: blocks, bytes asked for, those pinned, when the oldest was born (-1: before recording). */
  byOrigin() {
    const { spans, slots, snapshot } = this.device;
    const origins = snapshot.origins.count;
    const rows = {
      blocks: new Uint32Array(origins),
      bytes: new Float64Array(origins),
      pinned: new Float64Array(origins),
      oldest: new Float64Array(origins).fill(Infinity),
      total: 0,
    };
    for (let i = 0; i < this.count; i++) {
      const span = this.spans[i];
      if (spans.state[span] === RESERVED) continue;
      const slot = spans.slot[span],
        origin = slots.origin[slot],
        bytes = slots.requested[slot];
      rows.blocks[origin]++;
      rows.bytes[origin] += bytes;
      rows.total += bytes;
      if (spans.state[span] === PINNED) rows.pinned[origin] += bytes;
      if (slots.born[slot] < rows.oldest[origin]) rows.oldest[origin] = slots.born[slot];
    }
    return rows;
  }
}

function grown(array) {
  const larger = new array.constructor(array.length * 2);
  larger.set(array);
  return larger;
}
