// Paints an ArenaMap: pixels of the rows that are in the window, then text and outlines over them.

// Above this relative luminance, black text has more contrast than white (WCAG 2, 1.4.3).
const SPLIT = 0.18;

class Painter {
  constructor() {
    this.dark = null;
  }

  /** Colours as canvas pixels (little endian ABGR): plain, hatch, and both faint, for what is not in focus. */
  theme(dark, style) {
    if (this.dark === dark) return;
    this.dark = dark;
    const read = (name) => style.getPropertyValue(name).trim();
    this.text = read('--text');
    this.muted = read('--muted');
    this.accent = read('--accent');
    this.strong = read('--strong');
    this.surface = read('--surface');
    const hole = rgb(read('--hole'));
    this.hole = pixel(hole);
    this.holeRgb = hole;
    const colours = ALL_COLOURS.map(rgb);
    const towards = dark ? [0, 0, 0] : [255, 255, 255];
    const faint = (colour) => mix(colour, hole, 0.8);
    this.colours = colours;
    this.main = Uint32Array.from(colours, pixel);
    this.hatch = Uint32Array.from(colours, (colour) => pixel(mix(colour, [0, 0, 0], 0.5)));
    this.pale = Uint32Array.from(colours, (colour) => pixel(mix(colour, hole, 0.62)));
    this.edge = Uint32Array.from(colours, (colour) => pixel(mix(colour, towards, 0.45)));
    this.faintMain = Uint32Array.from(colours, (colour) => pixel(faint(colour)));
    this.faintHatch = Uint32Array.from(colours, (colour) => pixel(faint(mix(colour, [0, 0, 0], 0.5))));
    this.faintPale = Uint32Array.from(colours, (colour) => pixel(faint(mix(colour, hole, 0.62))));
    this.faintEdge = Uint32Array.from(colours, (colour) => pixel(faint(mix(colour, towards, 0.3))));
    this.ink = colours.map((colour) => (luminance(colour) > SPLIT ? '#10141a' : '#ffffff'));
  }

  /** Plain colour, pattern colour and kind of pattern (0 none, 1 hatched, 2 dotted, 3 crossed) of a block. */
  style(state, group, faint) {
    const main = faint ? this.faintMain : this.main,
      hatch = faint ? this.faintHatch : this.hatch;
    if (state === PINNED) return [main[group], hatch[group], 1];
    if (state === PENDING) return [(faint ? this.faintPale : this.pale)[group], main[group], 2];
    if (state === RESERVED) return [(faint ? this.faintPale : this.pale)[group], main[group], 3];
    return [main[group], hatch[group], 0];
  }

  paint(map, now) {
    const { canvas, scroller, context, view } = map;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = map.spacer.clientWidth,
      height = scroller.clientHeight;
    const w = Math.max(1, Math.round(width * ratio)),
      h = Math.max(1, Math.round(height * ratio));
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      this.image = null;
    }
    if (!map.image || map.image.width !== w || map.image.height !== h) {
      map.image = new ImageData(w, h);
      map.pixels = new Uint32Array(map.image.data.buffer);
    }
    map.pixels.fill(0);
    const labels = [];
    const top = scroller.scrollTop;
    if (view?.regionCount) this.#rows(map, now, ratio, top, w, h, labels);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.putImageData(map.image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (view?.regionCount) {
      this.#heads(map, top, width, height);
      this.#labels(map, labels);
      this.#outlines(map, top, width);
    }
  }

  #rows(map, now, ratio, top, w, h, labels) {
    const { view, bytesPerRow: bpr, v } = map,
      { spans, slots, regions } = view.device;
    const rowHeight = Math.round(ROW * ratio),
      scale = w / bpr;
    const line = new Uint32Array(w),
      patterned = [];
    let index = -1;
    for (let row = map.rowAt(top); row < map.rows; row++) {
      const y = Math.round((map.top(row) - top) * ratio);
      if (y >= h) break;
      const from = row * bpr,
        to = from + bpr;
      line.fill(0);
      patterned.length = 0;
      for (let r = map.regionOf(from); r < view.regionCount && map.starts[r] < to; r++) {
        const begin = Math.max(map.starts[r], from),
          end = Math.min(map.starts[r] + regions.bytes[view.regions[r]], to);
        const a = Math.round((begin - from) * scale);
        line.fill(this.hole, a, Math.max(a + 1, Math.round((end - from) * scale)));
        if (!map.head && r > 0 && map.starts[r] >= from) line[a] = this.faintEdge[REST_GROUP];
      }
      if (index < 0) index = Math.max(0, lastAtOrBelow(v, view.count, from));
      // The pixel that is being shared: how much of it is covered, and the colour of the one that covers most.
      let shared = -1,
        cover = 0,
        biggest = 0,
        colour = 0;
      const flush = () => {
        if (shared >= 0 && shared < w && line[shared] === this.hole) {
          line[shared] = cover > 0.97 ? colour : blend(this.holeRgb, colour, Math.max(0.35, cover));
        }
        shared = -1;
        cover = biggest = 0;
      };
      const share = (at, size, ink) => {
        if (at !== shared) flush();
        shared = at;
        cover += size;
        if (size > biggest) {
          biggest = size;
          colour = ink;
        }
      };
      for (; index < view.count && v[index] < to; index++) {
        const span = view.spans[index],
          size = spans.bytes[span];
        const start = Math.max(v[index], from),
          end = Math.min(v[index] + size, to);
        if (end > start) {
          const x0 = (start - from) * scale,
            x1 = (end - from) * scale;
          const slot = spans.slot[span],
            state = spans.state[span],
            origin = slots.origin[slot];
          const group =
            state === RESERVED ? RESERVED_GROUP : map.byAge ? ageGroup(slots.born[slot], now) : map.groupOf[origin];
          const faint = map.focus !== null && (state === RESERVED || !map.focus.has(origin));
          if (x1 - x0 < 1) {
            const at = Math.floor(x0),
              inner = Math.min(x1, at + 1) - x0;
            const ink = (faint ? this.faintMain : this.main)[group];
            share(at, inner, ink);
            if (x1 > at + 1) share(at + 1, x1 - at - 1, ink);
          } else {
            const a = Math.round(x0),
              b = Math.max(a + 1, Math.round(x1));
            const [main, second, pattern] = this.style(state, group, faint);
            flush();
            for (let x = a; x < b; x++) line[x] = main;
            if (b - a >= 4 * ratio && v[index] >= from) line[a] = (faint ? this.faintEdge : this.edge)[group];
            if (pattern && b - a > 1) patterned.push(a, b, second, pattern);
            if (b - a > 76 * ratio && !faint)
              labels.push(index, group, a / ratio, b / ratio, map.top(row) - top, v[index] < from);
          }
        }
        if (v[index] + size > to) break;
      }
      flush();
      // A block that goes on is met again by the next row.
      if (index >= view.count || v[index] >= to) index = Math.max(0, index - 1);
      const last = Math.min(h, y + rowHeight);
      for (let at = Math.max(0, y); at < last; at++) map.pixels.set(line, at * w);
      for (let p = 0; p < patterned.length; p += 4) {
        drawPattern(
          map.pixels,
          w,
          Math.max(0, y),
          last,
          patterned[p],
          patterned[p + 1],
          patterned[p + 2],
          patterned[p + 3],
          ratio,
        );
      }
    }
  }

  #heads(map, top, width, height) {
    if (!map.head) return;
    const { context: c, view } = map,
      { regions } = view.device;
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    for (let r = 0; r < view.regionCount; r++) {
      const y = map.top(Math.round(map.starts[r] / map.bytesPerRow)) - HEAD - top;
      if (y < -HEAD || y > height) continue;
      const region = view.regions[r];
      c.fillStyle = this.muted;
      c.fillText(
        `Region ${formatAddress(regions.address[region])} · ${formatBytes(regions.bytes[region])}`,
        1,
        y + HEAD / 2,
        width,
      );
    }
  }

  #labels(map, labels) {
    const { context: c, view } = map,
      { spans, slots, snapshot } = view.device;
    c.font = '11px system-ui, sans-serif';
    c.textBaseline = 'middle';
    for (let i = 0; i < Math.min(labels.length, 6 * 200); i += 6) {
      const [index, group, from, to, y, goesOn] = labels.slice(i, i + 6);
      if (goesOn && from < 1 && i > 0 && labels[i - 6] === index) continue;
      const span = view.spans[index],
        slot = spans.slot[span],
        state = spans.state[span];
      const { label, program } = snapshot.origins,
        origin = slots.origin[slot],
        room = to - from - 14;
      let name = state === RESERVED ? 'reserved for scratch' : formatName(label[origin], 120);
      // The colour says the program, so its name is the first to go.
      if (
        state !== RESERVED &&
        program[origin] &&
        c.measureText(name).width > room &&
        label[origin].startsWith(`${program[origin]} `)
      ) {
        name = formatName(label[origin].slice(program[origin].length + 1), 120);
      }
      const text = fitted(c, name, room);
      if (!text) continue;
      // On a pattern, text needs a ground of its own.
      if (state !== LIVE) {
        c.fillStyle = state === PINNED ? hex(this.colours[group]) : hex(mix(this.colours[group], this.holeRgb, 0.62));
        c.fillRect(from + 4, y + 2, c.measureText(text).width + 6, ROW - 4);
      }
      c.fillStyle = state === LIVE || state === PINNED ? this.ink[group] : this.strong;
      c.fillText(text, from + 7, y + ROW / 2 + 0.5);
    }
  }

  #outlines(map, top, width) {
    const { context: c, view } = map,
      { spans, regions } = view.device;
    const outline = (address, bytes, colour, dash, thick) => {
      const r = map.regionOfAddress(address);
      if (r < 0 || bytes <= 0) return;
      const v = map.starts[r] + address - regions.address[view.regions[r]];
      const first = Math.floor(v / map.bytesPerRow),
        last = Math.floor((v + bytes - 1) / map.bytesPerRow);
      c.strokeStyle = colour;
      c.lineWidth = thick;
      c.setLineDash(dash);
      const shown = Math.max(first, map.rowAt(top)),
        until = Math.min(last, map.rowAt(top + map.height));
      for (let row = shown; row <= until; row++) {
        const a = row === first ? (v / map.bytesPerRow - row) * width : -4;
        const b = row === last ? ((v + bytes) / map.bytesPerRow - row) * width : width + 4;
        c.strokeRect(
          a - thick / 2 + 0.5,
          map.top(row) - top - thick / 2 + 0.5,
          Math.max(2, b - a) + thick - 1,
          ROW + thick - 1,
        );
      }
      c.setLineDash([]);
    };
    if (view.largestHole.bytes) this.#largestHole(map, top, width);
    if (map.moves) this.#moves(map, top, outline);
    if (map.selected >= 0) outline(spans.address[map.selected], spans.bytes[map.selected], this.strong, [], 2);
    if (map.wanted) outline(map.wanted.address, map.wanted.bytes, this.strong, [], 2);
  }

  /** Names the largest hole, in the first of its rows that is in the window and has the room. */
  #largestHole(map, top, width) {
    const { context: c, view } = map,
      { address, bytes } = view.largestHole,
      place = map.locate(address);
    const text = `largest hole ${formatBytes(bytes)}`;
    c.font = '11px system-ui, sans-serif';
    c.fillStyle = this.muted;
    const needed = c.measureText(text).width + 14,
      perRow = map.bytesPerRow;
    let row = Math.max(map.rowAt(place.y), map.rowAt(top + ROW));
    const rowOf = map.rowAt(place.y),
      from = row === rowOf ? place.x : 0;
    const until = (place.x / width) * perRow + bytes - (row - rowOf) * perRow;
    const room = Math.min(width, (until / perRow) * width) - from;
    if (room >= needed) c.fillText(text, from + 7, map.top(row) - top + ROW / 2 + 0.5);
    else if (row === rowOf && until - perRow >= (needed / width) * perRow)
      c.fillText(text, 7, map.top(++row) - top + ROW / 2 + 0.5);
  }

  /** Arrows from where blocks were to where they are: the largest of those that the window shows. */
  #moves(map, top, outline) {
    const { context: c, view } = map,
      { events } = view.device;
    const shown = map.moves.toSorted((a, b) => events.bytes[b] - events.bytes[a]).slice(0, 14);
    for (const move of shown) outline(events.other[move], events.bytes[move], this.muted, [2, 2], 1);
    c.lineWidth = 1.5;
    for (const move of shown) {
      const middle = (address) => map.locate(address + Math.min(events.bytes[move] / 2, map.bytesPerRow * 0.02));
      const from = middle(events.other[move]),
        to = middle(events.address[move]);
      if (!from || !to || Math.hypot(from.x - to.x, from.y - to.y) < 24) continue;
      arrow(c, from.x, from.y - top + ROW / 2, to.x, to.y - top + ROW / 2, this.surface, this.strong);
    }
  }
}

function arrow(c, x0, y0, x1, y1, halo, ink) {
  const bend = Math.min(60, Math.hypot(x1 - x0, y1 - y0) / 4);
  const cx = (x0 + x1) / 2 + bend,
    cy = (y0 + y1) / 2,
    angle = Math.atan2(y1 - cy, x1 - cx);
  for (const [width, colour] of [
    [3.5, halo],
    [1.5, ink],
  ]) {
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = width;
    c.beginPath();
    c.moveTo(x0, y0);
    c.quadraticCurveTo(cx, cy, x1, y1);
    c.stroke();
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x1 - 8 * Math.cos(angle - 0.45), y1 - 8 * Math.sin(angle - 0.45));
    c.lineTo(x1 - 8 * Math.cos(angle + 0.45), y1 - 8 * Math.sin(angle + 0.45));
    c.closePath();
    c.fill();
    if (width > 2) c.stroke();
  }
}

function fitted(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let low = 0,
    high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low >= 4 ? `${text.slice(0, low)}…` : '';
}

function drawPattern(pixels, width, top, bottom, from, to, colour, pattern, ratio) {
  const period = Math.round(7 * ratio),
    thick = Math.max(1, Math.round(2.2 * ratio)),
    dot = Math.max(1, Math.round(1.6 * ratio));
  for (let y = top; y < bottom; y++) {
    const line = y * width;
    for (let x = from; x < to; x++) {
      const on =
        pattern === 1
          ? (x + y) % period < thick
          : pattern === 2
            ? x % period < dot * 1.5 && y % period < dot * 1.5
            : (x + y) % period < dot || (x - y + 100 * period) % period < dot;
      if (on) pixels[line + x] = colour;
    }
  }
}

function lastAtOrBelow(values, count, limit) {
  let low = -1,
    high = count - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}

function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** @param {number[]} colour */
function hex([r, g, b]) {
  return `rgb(${Math.round(r)}, ${Math.round(g)}, ${Math.round(b)})`;
}

function mix(a, b, share) {
  return a.map((value, i) => value + (b[i] - value) * share);
}

/** @param {number[]} colour */
function pixel([r, g, b]) {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

function blend(ground, colour, share) {
  return pixel(mix(ground, [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255], share));
}

function luminance(colour) {
  const [r, g, b] = colour.map((value) => (value / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
