// The map of one device at one instant.
//
//   region 0x7f20... 112 MiB
//   |####////....##########......|      a row is `bytesPerRow` long; each region begins a row of its own,
//   |##########..........        |      or, when there are many, all lie one after another
//
// Blocks lie on a virtual axis: the regions in the order of their addresses, each padded to whole rows. So where a
// block is drawn is a division, and which block lies under the pointer a binary search. Pixels are written as such:
// blocks that share one are mixed, and the time for a frame depends on the size of the window, not on the blocks.

const ROW = 18,
  ROW_GAP = 4,
  HEAD = 24,
  PACKED_FROM = 24;
const MOST_HEIGHT = 8e6,
  LEAST_BYTES_PER_ROW = 1024;

class ArenaMap {
  /**
   * `on`: hover(hit or null, event), select(hit or null), zoom(), fit(), redraw(). A hit is {span} or
   * {hole: {address, bytes}}.
   */
  constructor(host, label, on) {
    this.on = on;
    this.wanted = null;
    this.canvas = element('canvas', { role: 'img' });
    this.spacer = element('div', { class: 'map-spacer' }, this.canvas);
    this.scroller = element(
      'div',
      {
        class: 'map-scroller',
        tabindex: 0,
        role: 'group',
        'aria-label': label,
        'aria-roledescription': 'memory map',
      },
      this.spacer,
    );
    host.append(this.scroller);
    this.context = this.canvas.getContext('2d');
    this.view = null;
    this.bytesPerRow = 0;
    this.byAge = false;
    this.focus = null;
    this.selected = -1;
    this.moves = null;
    this.#listen();
  }

  /** What to show: a view, and the group of each origin of its snapshot. */
  show(view, groupOf) {
    this.view = view;
    this.groupOf = groupOf;
    this.layout();
  }

  /** Lines of map that are to be seen at once. */
  get height() {
    return this.scroller.clientHeight;
  }

  layout() {
    if (!this.view) return;
    const { view } = this,
      { regions } = view.device;
    const packed = view.regionCount > PACKED_FROM;
    let total = 0;
    for (let r = 0; r < view.regionCount; r++) total += regions.bytes[view.regions[r]];
    const height = Math.max(60, this.height);
    if (!this.bytesPerRow) {
      const heads = packed ? 0 : view.regionCount * HEAD;
      const rows = Math.max(4, Math.floor((height - heads - 6) / (ROW + ROW_GAP)));
      this.bytesPerRow = this.fitted = niceSize(total / rows, view, packed, rows);
    }
    const least = Math.max(
      LEAST_BYTES_PER_ROW,
      2 ** Math.ceil(Math.log2(Math.max(1, (total * (ROW + ROW_GAP)) / MOST_HEIGHT))),
    );
    this.bytesPerRow = Math.min(Math.max(this.bytesPerRow, least), 2 ** Math.ceil(Math.log2(Math.max(total, 1024))));
    const bpr = this.bytesPerRow;
    this.starts = new Float64Array(view.regionCount);
    this.head = packed ? 0 : HEAD;
    let at = 0;
    for (let r = 0; r < view.regionCount; r++) {
      this.starts[r] = at;
      at += regions.bytes[view.regions[r]];
      if (!packed) at = Math.ceil(at / bpr) * bpr;
    }
    this.rows = Math.ceil(at / bpr);
    this.extent = this.rows * (ROW + ROW_GAP) + (packed ? 0 : view.regionCount) * HEAD;
    if (!this.v || this.v.length < view.count) this.v = new Float64Array(Math.max(1024, view.count * 2));
    const { spans } = view.device;
    let r = 0;
    for (let i = 0; i < view.count; i++) {
      const address = spans.address[view.spans[i]];
      while (r < view.regionCount - 1 && regions.address[view.regions[r + 1]] <= address) r++;
      this.v[i] = view.regionCount ? this.starts[r] + address - regions.address[view.regions[r]] : 0;
    }
    this.spacer.style.height = `${Math.max(this.extent, height)}px`;
  }

  regionOf(v) {
    let low = 0,
      high = this.view.regionCount - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= v) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  top(row) {
    return row * (ROW + ROW_GAP) + (this.head ? (this.regionOf(row * this.bytesPerRow) + 1) * HEAD : 0);
  }

  /** The row at a height of the whole map: the last that begins at or above it. */
  rowAt(y) {
    let low = 0,
      high = Math.max(0, this.rows - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.top(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Where an address is drawn, in pixels of the whole map; null outside of all regions. */
  locate(address) {
    const r = this.regionOfAddress(address);
    if (r < 0) return null;
    const v = this.starts[r] + address - this.view.device.regions.address[this.view.regions[r]];
    const row = Math.floor(v / this.bytesPerRow);
    return { x: (v / this.bytesPerRow - row) * this.canvas.clientWidth, y: this.top(row) };
  }

  /** Index of the region, among those of the view, that an address lies in; -1 for none. */
  regionOfAddress(address) {
    const { view } = this,
      { regions } = view.device;
    let low = -1,
      high = view.regionCount - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (regions.address[view.regions[middle]] <= address) low = middle;
      else high = middle - 1;
    }
    return low >= 0 && address < regions.address[view.regions[low]] + regions.bytes[view.regions[low]] ? low : -1;
  }

  reveal(address) {
    const place = this.locate(address);
    if (!place) return;
    const top = this.scroller.scrollTop;
    if (place.y < top + HEAD || place.y + ROW > top + this.height) this.scroller.scrollTop = place.y - this.height / 2;
  }

  /** Multiplies the scale by `factor`, about the point (x, y) of the window, or its middle. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.height / 2) {
    if (!this.view?.regionCount) return;
    const anchor = this.#addressAt(x, y);
    const before = this.bytesPerRow;
    this.bytesPerRow = this.bytesPerRow / factor;
    this.layout();
    if (this.bytesPerRow !== before) {
      const place = this.locate(anchor);
      if (place) this.scroller.scrollTop = place.y - y + ROW / 2;
    }
    this.on.zoom();
  }

  #addressAt(x, y) {
    const row = this.rowAt(y + this.scroller.scrollTop);
    const v = (row + x / Math.max(1, this.canvas.clientWidth)) * this.bytesPerRow;
    const r = this.regionOf(v),
      { regions } = this.view.device,
      region = this.view.regions[r];
    return Math.min(regions.address[region] + v - this.starts[r], regions.address[region] + regions.bytes[region] - 1);
  }

  /** What lies at a point of the window. */
  hit(x, y) {
    const { view } = this;
    if (!view?.regionCount || x < 0 || x >= this.canvas.clientWidth) return null;
    const absolute = y + this.scroller.scrollTop,
      row = this.rowAt(absolute),
      inRow = absolute - this.top(row);
    if (inRow < 0 || inRow >= ROW + ROW_GAP) return null;
    const perPixel = this.bytesPerRow / this.canvas.clientWidth;
    const v = (row + x / this.canvas.clientWidth) * this.bytesPerRow;
    const r = this.regionOf(v),
      { regions, spans } = view.device,
      region = view.regions[r];
    const address = regions.address[region] + v - this.starts[r];
    const end = regions.address[region] + regions.bytes[region];
    if (address >= end) return null;
    const i = view.indexAt(address);
    // A block that is thinner than a pixel is hit by its neighbours' pixels too.
    for (const near of [i, i + 1]) {
      if (near < 0 || near >= view.count) continue;
      const span = view.spans[near],
        from = spans.address[span],
        to = from + spans.bytes[span];
      const reach = near === i && address < to ? 0 : to - from < perPixel ? 2 * perPixel : 0;
      if (address >= from - reach && address < to + reach) return { span };
    }
    const from =
      i >= 0
        ? Math.max(regions.address[region], spans.address[view.spans[i]] + spans.bytes[view.spans[i]])
        : regions.address[region];
    const to = i + 1 < view.count ? Math.min(end, spans.address[view.spans[i + 1]]) : end;
    return { hole: { address: from, bytes: to - from } };
  }

  /** Moves the selection: by blocks, or by rows to the block nearest above or below. */
  step(blocks, rows) {
    const { view } = this;
    if (!view?.count) return;
    const { spans } = view.device;
    const selected = this.selected >= 0 ? view.indexAt(spans.address[this.selected]) : -1;
    let next;
    if (selected < 0) next = blocks < 0 ? view.count - 1 : 0;
    else if (blocks) next = selected + blocks;
    else {
      const target = this.v[selected] + rows * this.bytesPerRow;
      let low = 0,
        high = view.count - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.v[middle] <= target) low = middle;
        else high = middle - 1;
      }
      next = low === selected ? selected + rows : low;
    }
    const span = view.spans[Math.max(0, Math.min(view.count - 1, next))];
    this.on.select({ span });
    this.reveal(spans.address[span]);
  }

  #listen() {
    const { scroller } = this;
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const distance = ([ax, ay], [bx, by]) => Math.hypot(ax - bx, ay - by);
    const fingers = new Map();
    let apart = 0,
      moved = 0;
    scroller.addEventListener('scroll', () => this.on.redraw());
    scroller.addEventListener(
      'wheel',
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(2 ** (-Math.max(-80, Math.min(80, event.deltaY)) / 160), ...point(event));
      },
      { passive: false },
    );
    scroller.addEventListener('pointerdown', (event) => {
      fingers.set(event.pointerId, point(event));
      moved = 0;
      apart = fingers.size === 2 ? distance(...fingers.values()) : 0;
    });
    scroller.addEventListener('pointermove', (event) => {
      if (fingers.has(event.pointerId)) {
        const [x, y] = point(event),
          [oldX, oldY] = fingers.get(event.pointerId);
        moved += Math.abs(x - oldX) + Math.abs(y - oldY);
        fingers.set(event.pointerId, [x, y]);
      }
      if (fingers.size === 2) {
        const [a, b] = fingers.values();
        const now = distance(a, b);
        if (apart) this.zoom(now / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        apart = now;
      } else if (event.pointerType === 'mouse') this.on.hover(this.hit(...point(event)), event);
    });
    const gone = (event) => fingers.delete(event.pointerId);
    scroller.addEventListener('pointerup', gone);
    scroller.addEventListener('pointercancel', gone);
    scroller.addEventListener('pointerleave', (event) => {
      gone(event);
      this.on.hover(null, event);
    });
    this.canvas.addEventListener('click', (event) => {
      if (moved < 12) this.on.select(this.hit(...point(event)));
    });
    scroller.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        ArrowLeft: () => this.step(-1, 0),
        ArrowRight: () => this.step(1, 0),
        ArrowUp: () => this.step(0, -1),
        ArrowDown: () => this.step(0, 1),
        '+': () => this.zoom(2),
        '=': () => this.zoom(2),
        '-': () => this.zoom(0.5),
        0: () => this.on.fit(),
        Escape: () => this.on.select(null),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }
}

/** The least of 1, 1.25, 1.5, 1.75 times a power of two with which all regions fit into `rows` rows. */
function niceSize(wanted, view, packed, rows) {
  const { regions } = view.device;
  let size = 2 ** Math.floor(Math.log2(Math.max(LEAST_BYTES_PER_ROW, wanted)));
  for (let tries = 0; tries < 200; tries++) {
    for (const part of [1, 1.25, 1.5, 1.75]) {
      let needed = packed ? (wanted * rows) / (size * part) : 0;
      for (let r = 0; !packed && r < view.regionCount; r++)
        needed += Math.ceil(regions.bytes[view.regions[r]] / (size * part));
      if (needed <= Math.max(rows, packed ? 0 : view.regionCount)) return size * part;
    }
    size *= 2;
  }
  return size;
}
