// What a snapshot says, as typed arrays.
//
//   blocks now --undo--> state before the oldest event --redo--> spans, one for each time a block stayed as it was
//
// A span is a block at one address in one state, from one position of the history to another. Position p is the
// instant after p events. What there was at p is the set of spans with from <= p < to: one pass over the spans, which
// are sorted by address, in place of undoing and redoing events. So each seek costs the same, wherever it goes.

class Device {
  constructor(raw, snapshot, where) {
    this.snapshot = snapshot;
    this.name = text_(raw.name) || where;
    this.strategy = text_(raw.strategy);
    this.compaction = raw.compaction === true;
    this.limit = number_(raw.limit);
    this.stats = {};
    for (const [name, value] of Object.entries(raw.stats ?? {})) this.stats[name] = number_(value);
    this.eventsLost = number_(raw.events_lost);
    this.final = columns(
      raw.blocks,
      ['id', 'address', 'bytes', 'requested', 'state', 'origin', 'step', 'born', 'pin'],
      `${where}.blocks`,
    );
    this.finalRegions = columns(raw.regions, ['address', 'bytes'], `${where}.regions`);
    this.events = columns(
      raw.events,
      ['time', 'kind', 'block', 'address', 'bytes', 'origin', 'step', 'other'],
      `${where}.events`,
      ['before'],
    );
    this.count = this.events.rows;
    /** Events that do not fit what comes after them, so that nothing was drawn from them. */
    this.strays = 0;
    this.slots = this.spans = null;
    /** @type {any} */
    this.series = null;
    const history = undo(this);
    redo(this, history);
    measure(this);
    sortSpans(this);
    this.compactions = findCompactions(this);
    this.failures = findFailures(this, raw.failures);
    this.peakAt = indexOfMaximum(this.series.inUse);
  }

  /** Nanoseconds since recording began, at a position. */
  timeAt(position) {
    if (position >= this.count) return Math.max(this.snapshot.now, this.count ? this.events.time[this.count - 1] : 0);
    return position > 0 ? this.events.time[position - 1] : this.count ? this.events.time[0] : this.snapshot.now;
  }

  /** The last position whose instant is not after `time`. */
  positionAt(time) {
    let low = 0,
      high = this.count;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.timeAt(middle) <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** How many blocks at the last position are not as the snapshot lists them; 0 unless events are missing. */
  differences() {
    const view = new View(this);
    view.seek(this.count);
    const { final } = this;
    const listed = new Map();
    let expected = 0;
    for (let i = 0; i < final.rows; i++) {
      if (final.state[i] === RESERVED) continue;
      expected++;
      listed.set(final.id[i], i);
    }
    let same = 0,
      seen = 0;
    for (let i = 0; i < view.count; i++) {
      const span = view.spans[i],
        slot = this.spans.slot[span];
      if (this.spans.state[span] === RESERVED) continue;
      seen++;
      const row = listed.get(this.slots.id[slot]);
      if (
        row !== undefined &&
        final.address[row] === this.spans.address[span] &&
        final.bytes[row] === this.spans.bytes[span] &&
        final.requested[row] === this.slots.requested[slot] &&
        final.state[row] === this.spans.state[span] &&
        (final.state[row] !== PINNED || final.pin[row] === this.spans.pin[span]) &&
        final.origin[row] === this.slots.origin[slot]
      )
        same++;
    }
    return Math.max(expected, seen) - same;
  }
}

/** Undoes all events: who was there before the oldest, and which block each event is about. */
function undo(device) {
  const { final, events } = device;
  const origins = device.snapshot.origins.count;
  const most = final.rows + events.rows + 1;
  const slots = {
    id: new Float64Array(most),
    requested: new Float64Array(most),
    origin: new Uint32Array(most),
    step: new Float64Array(most),
    born: new Float64Array(most),
  };
  const address = new Float64Array(most),
    bytes = new Float64Array(most),
    state = new Uint8Array(most),
    pin = new Uint8Array(most);
  let used = 0;
  const add = (id, at, taken, requested, origin, step, born) => {
    slots.id[used] = id;
    address[used] = at;
    bytes[used] = taken;
    slots.requested[used] = requested;
    slots.origin[used] = origin >= 0 && origin < origins ? origin : 0;
    slots.step[used] = step;
    slots.born[used] = born;
    return used++;
  };
  const reserved = add(-1, 0, 0, 0, 0, 0, -1);
  let reservedAddress = -1,
    reservedBytes = 0;
  const live = new Map();
  for (let i = 0; i < final.rows; i++) {
    if (final.state[i] === RESERVED) {
      reservedAddress = final.address[i];
      reservedBytes += final.bytes[i];
      continue;
    }
    const slot = add(
      final.id[i],
      final.address[i],
      final.bytes[i],
      final.requested[i],
      final.origin[i],
      final.step[i],
      final.born[i],
    );
    state[slot] = final.state[i] === PENDING ? PENDING : LIVE;
    pin[slot] = final.pin[i] || (final.state[i] === PINNED ? PIN_NOT_KNOWN : 0);
    live.set(final.id[i], slot);
  }
  const { finalRegions } = device,
    regions = new Map();
  for (let i = 0; i < finalRegions.rows; i++) {
    regions.set(regionKey(finalRegions, i), [finalRegions.address[i], finalRegions.bytes[i]]);
  }

  const about = new Int32Array(events.rows).fill(-1);
  for (let i = events.rows - 1; i >= 0; i--) {
    const kind = events.kind[i],
      id = events.block[i];
    if (kind === EVENT.region || kind === EVENT.regionGone) {
      const key = regionKey(events, i),
        known = regions.has(key);
      if (known !== (kind === EVENT.region)) {
        device.strays++;
        continue;
      }
      about[i] = 0;
      if (kind === EVENT.region) regions.delete(key);
      else regions.set(key, [events.address[i], events.bytes[i]]);
    } else if (kind === EVENT.scratch) {
      about[i] = reserved;
      reservedBytes = Math.max(0, events.other[i]);
    } else if (kind === EVENT.free) {
      if (live.has(id)) {
        device.strays++;
        continue;
      }
      // What was asked for is known only where the allocation is still recorded, which comes later in this pass.
      about[i] = add(
        id,
        events.address[i],
        events.bytes[i],
        events.bytes[i],
        events.origin[i],
        events.step[i],
        events.other[i],
      );
      live.set(id, about[i]);
      if (events.before?.[i] === PENDING) state[about[i]] = PENDING;
      if (events.before?.[i] === PINNED) pin[about[i]] = PIN_NOT_KNOWN;
    } else if (kind >= EVENT.allocate && kind <= EVENT.move) {
      const slot = live.get(id);
      if (slot === undefined) {
        device.strays++;
        continue;
      }
      about[i] = slot;
      // A move may change what a block takes. What it took before is known from the event before that, if it is kept.
      bytes[slot] = events.bytes[i];
      if (kind === EVENT.allocate) {
        slots.requested[slot] = events.other[i];
        slots.born[slot] = events.time[i];
        address[slot] = events.address[i];
        live.delete(id);
      } else if (kind === EVENT.retire) {
        state[slot] = LIVE;
        if (events.before?.[i] === PINNED) pin[slot] ||= PIN_NOT_KNOWN;
      } else if (kind === EVENT.pin) pin[slot] = 0;
      else if (kind === EVENT.unpin) pin[slot] = events.other[i] || PIN_NOT_KNOWN;
      else address[slot] = events.other[i];
    }
  }
  device.slots = slots;
  return { live, regions, about, address, bytes, state, pin, reserved, reservedBytes, reservedAddress, slots: used };
}

function regionKey(table, row) {
  return `${table.address[row]} ${table.bytes[row]}`;
}

/** Replays all events from the state that `undo` found, and writes down the spans. */
function redo(device, history) {
  const { events } = device;
  const { about, address, bytes, pin, reserved } = history;
  const end = events.rows + 1;
  const most = history.live.size + events.rows + 2;
  const spans = {
    rows: 0,
    slot: new Uint32Array(most),
    address: new Float64Array(most),
    bytes: new Float64Array(most),
    state: new Uint8Array(most),
    pin: new Uint8Array(most),
    from: new Uint32Array(most),
    to: new Uint32Array(most),
  };
  const held = history.regions.size + events.rows;
  const regions = {
    rows: 0,
    address: new Float64Array(held),
    bytes: new Float64Array(held),
    from: new Uint32Array(held),
    to: new Uint32Array(held),
  };
  const opened = new Int32Array(events.rows).fill(-1),
    closed = new Int32Array(events.rows).fill(-1);
  const pending = new Uint8Array(history.slots);
  for (const slot of history.live.values()) pending[slot] = history.state[slot] === PENDING ? 1 : 0;
  const current = new Int32Array(history.slots).fill(-1);

  const open = (slot, position) => {
    const span = spans.rows++;
    spans.slot[span] = slot;
    spans.address[span] = address[slot];
    spans.bytes[span] = bytes[slot];
    spans.state[span] = slot === reserved ? RESERVED : pending[slot] ? PENDING : pin[slot] ? PINNED : LIVE;
    spans.pin[span] = pin[slot];
    spans.from[span] = position;
    spans.to[span] = end;
    current[slot] = span;
    return span;
  };
  const close = (slot, position) => {
    const span = current[slot];
    if (span >= 0) spans.to[span] = position;
    current[slot] = -1;
    return span;
  };

  const here = new Map();
  const openRegion = (at, size, position) => {
    const region = regions.rows++;
    regions.address[region] = at;
    regions.bytes[region] = size;
    regions.from[region] = position;
    regions.to[region] = end;
    here.set(regionKey(regions, region), region);
    return region;
  };
  for (const [at, size] of history.regions.values()) openRegion(at, size, 0);
  for (const slot of history.live.values()) open(slot, 0);

  // Scratch lies at the bottom of the lowest region, or where its event says; and changes size.
  const reserve = (size, at, position) => {
    let bottom = at > 0 ? at : history.reservedAddress;
    if (bottom < 0)
      for (const r of here.values()) if (bottom < 0 || regions.address[r] < bottom) bottom = regions.address[r];
    address[reserved] = Math.max(bottom, 0);
    if (size <= 0) return -1;
    bytes[reserved] = size;
    const span = open(reserved, position);
    return span;
  };
  reserve(history.reservedBytes, -1, 0);

  for (let i = 0; i < events.rows; i++) {
    const slot = about[i],
      position = i + 1;
    if (slot < 0) continue;
    switch (events.kind[i]) {
      case EVENT.allocate:
        pin[slot] = 0;
        pending[slot] = 0;
        address[slot] = events.address[i];
        bytes[slot] = events.bytes[i];
        opened[i] = open(slot, position);
        break;
      case EVENT.free:
        closed[i] = close(slot, position);
        break;
      case EVENT.retire:
        closed[i] = close(slot, position);
        pending[slot] = 1;
        opened[i] = open(slot, position);
        break;
      case EVENT.pin:
      case EVENT.unpin:
        closed[i] = close(slot, position);
        pin[slot] = events.kind[i] === EVENT.pin ? events.other[i] || PIN_NOT_KNOWN : 0;
        opened[i] = open(slot, position);
        break;
      case EVENT.move:
        closed[i] = close(slot, position);
        address[slot] = events.address[i];
        bytes[slot] = events.bytes[i];
        opened[i] = open(slot, position);
        break;
      case EVENT.region:
        opened[i] = openRegion(events.address[i], events.bytes[i], position);
        break;
      case EVENT.regionGone:
        closed[i] = here.get(regionKey(events, i)) ?? -1;
        if (closed[i] >= 0) regions.to[closed[i]] = position;
        here.delete(regionKey(events, i));
        break;
      case EVENT.scratch:
        closed[i] = close(reserved, position);
        opened[i] = reserve(events.bytes[i], events.address[i], position);
        break;
    }
  }
  device.spans = spans;
  device.regions = regions;
  device.changes = { opened, closed };
}

/** Gives spans and regions the order of their addresses, so that one pass meets them as they lie. */
function sortSpans(device) {
  for (const table of [device.spans, device.regions]) {
    const keys = table.address;
    const order = new Uint32Array(table.rows);
    for (let i = 0; i < order.length; i++) order[i] = i;
    order.sort((a, b) => keys[a] - keys[b]);
    for (const name of Object.keys(table)) {
      if (name === 'rows') continue;
      const old = table[name],
        sorted = new old.constructor(table.rows);
      for (let i = 0; i < order.length; i++) sorted[i] = old[order[i]];
      table[name] = sorted;
    }
  }
  delete device.changes;
}

function findCompactions(device) {
  const { events } = device;
  const found = [];
  for (let i = 0; i < events.rows; i++) {
    if (events.kind[i] !== EVENT.compaction) continue;
    const buffers = events.block[i],
      began = events.time[i] - events.step[i];
    const moves = [];
    for (let j = i - 1; j >= 0 && moves.length < buffers && events.time[j] >= began; j--) {
      if (events.kind[j] === EVENT.compaction) break;
      if (events.kind[j] === EVENT.move) moves.push(j);
    }
    moves.reverse();
    found.push({
      at: i + 1,
      before: moves.length ? moves[0] : i,
      moves,
      buffers,
      bytes: events.bytes[i],
      duration: events.step[i],
      holeAfter: events.other[i],
    });
  }
  return found;
}

/** In the order of time: those whose event is lost, and have no position, before those whose text is. */
function findFailures(device, listed) {
  const { events, series } = device;
  const raw = Array.isArray(listed) ? listed : [];
  const at = new Map(),
    forgotten = [];
  for (let i = 0; i < events.rows; i++) {
    if (events.kind[i] !== EVENT.outOfMemory) continue;
    if (raw[events.other[i]]) at.set(events.other[i], i + 1);
    else {
      forgotten.push({
        at: i + 1,
        bytes: events.bytes[i],
        origin: events.origin[i],
        free: freeAt(series, i + 1),
        hole: series.hole[i + 1],
        text: 'The text of this failure is no longer kept.',
      });
    }
  }
  const known = raw.map((failure, i) => ({
    at: at.get(i) ?? -1,
    bytes: number_(failure?.bytes),
    origin: number_(failure?.origin),
    free: number_(failure?.free),
    hole: number_(failure?.largest_hole),
    text: text_(failure?.text),
  }));
  return [...known, ...forgotten].sort((a, b) => a.at - b.at);
}

function indexOfMaximum(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}
