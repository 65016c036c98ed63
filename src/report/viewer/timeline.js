// The history as a chart: bytes above, fragmentation below, marks for failures and compactions on top.
//
// A column of pixels stands for all positions that fall on it: bytes in use are filled up to their least and, paler, up
// to their most. The chart is drawn once for a device and a size; a new position only draws the cursor over it.

const MARKS = 18,
  STRIP = 34,
  AXIS = 18,
  BETWEEN = 8,
  THUMB = 8;

class Timeline {
  /** `on.seek(position)` is told where the pointer drags. */
  constructor(canvas, on) {
    this.canvas = canvas;
    this.base = document.createElement('canvas');
    this.byTime = false;
    this.drawn = '';
    let dragging = false;
    const seek = (event) => {
      const box = canvas.getBoundingClientRect();
      if (this.device)
        on.seek(this.positionOf((event.clientX - box.left - THUMB) / Math.max(1, box.width - 2 * THUMB)));
    };
    canvas.addEventListener('pointerdown', (event) => {
      dragging = true;
      canvas.setPointerCapture(event.pointerId);
      const mark = this.#markNear(event);
      if (mark >= 0) {
        dragging = false;
        on.seek(mark);
      } else seek(event);
    });
    canvas.addEventListener('pointermove', (event) => dragging && seek(event));
    for (const end of ['pointerup', 'pointercancel'])
      canvas.addEventListener(end, () => {
        dragging = false;
      });
  }

  show(device) {
    this.device = device;
    this.drawn = '';
  }

  /** Where a position lies, from 0 to 1. */
  shareOf(position) {
    const { device } = this;
    if (!device.count) return 1;
    if (!this.byTime) return position / device.count;
    const from = device.timeAt(0),
      to = device.timeAt(device.count);
    return to > from ? (device.timeAt(position) - from) / (to - from) : 1;
  }

  positionOf(share) {
    const { device } = this,
      inside = Math.max(0, Math.min(1, share));
    if (!this.byTime) return Math.round(inside * device.count);
    const from = device.timeAt(0),
      to = device.timeAt(device.count);
    return device.positionAt(from + inside * (to - from));
  }

  #markNear(event) {
    const box = this.canvas.getBoundingClientRect();
    if (event.clientY - box.top > MARKS + 4) return -1;
    const x = event.clientX - box.left,
      width = box.width - 2 * THUMB;
    let best = -1,
      distance = 12;
    for (const mark of [...this.device.failures, ...this.device.compactions]) {
      const away = mark.at < 0 ? Infinity : Math.abs(THUMB + this.shareOf(mark.at) * width - x);
      if (away < distance) [best, distance] = [mark.at, away];
    }
    return best;
  }

  draw(position, style, theme) {
    const { canvas, base, device } = this;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = canvas.clientWidth,
      height = canvas.clientHeight;
    const key = `${width} ${height} ${ratio} ${theme} ${this.byTime}`;
    if (key !== this.drawn) {
      for (const one of [canvas, base]) {
        one.width = Math.round(width * ratio);
        one.height = Math.round(height * ratio);
      }
      const c = base.getContext('2d');
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.#drawBase(c, width, height, style);
      this.drawn = key;
    }
    const c = canvas.getContext('2d');
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.drawImage(base, 0, 0);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const x = Math.round(THUMB + this.shareOf(position) * (width - 2 * THUMB)) + 0.5;
    c.strokeStyle = style.getPropertyValue('--strong');
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x, MARKS - 4);
    c.lineTo(x, height - AXIS);
    c.stroke();
  }

  #drawBase(c, width, height, style) {
    const { device } = this,
      { series } = device;
    const colour = (name) => style.getPropertyValue(name).trim();
    const left = THUMB,
      plot = width - 2 * THUMB,
      top = MARKS,
      bottom = height - AXIS - STRIP - BETWEEN;
    const positions = device.count + 1;
    const columns = Math.max(1, Math.floor(plot));
    let most = 1;
    for (let i = 0; i < positions; i++) most = Math.max(most, series.pool[i], series.inUse[i]);
    most *= 1.04;
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);

    // One pass over the positions: least and most of each column, and the last value for columns that have none.
    const low = new Float64Array(columns).fill(Infinity),
      high = new Float64Array(columns);
    const pool = new Float64Array(columns),
      peak = new Float64Array(columns),
      reserved = new Float64Array(columns);
    const broken = new Float64Array(columns);
    let column = 0,
      poolNow = 0,
      inUseNow = 0,
      reservedNow = 0,
      brokenNow = 0,
      peakNow = 0;
    const enter = (i) => {
      low[i] = Math.min(low[i], inUseNow);
      high[i] = Math.max(high[i], inUseNow);
      pool[i] = Math.max(pool[i], poolNow);
      reserved[i] = Math.max(reserved[i], reservedNow);
      broken[i] = Math.max(broken[i], brokenNow);
      peak[i] = peakNow;
    };
    for (let p = 0; p < positions; p++) {
      const at = Math.min(columns - 1, Math.floor(this.shareOf(p) * columns));
      if (p > 0) while (column < at) enter(++column);
      column = at;
      inUseNow = series.inUse[p];
      peakNow = series.peak[p];
      poolNow = series.pool[p];
      reservedNow = series.reserved[p];
      brokenNow = fragmentation(series.hole[p], freeAt(series, p));
      enter(at);
    }
    while (column < columns - 1) enter(++column);

    c.font = '11px system-ui, sans-serif';
    c.textBaseline = 'middle';
    c.lineWidth = 1;
    const lines = [0, 0.5, 1].map((share) => (share * most) / 1.04);
    c.strokeStyle = colour('--line');
    for (const bytes of lines) {
      c.beginPath();
      c.moveTo(left, Math.round(y(bytes)) + 0.5);
      c.lineTo(left + plot, Math.round(y(bytes)) + 0.5);
      c.stroke();
    }
    const accent = colour('--accent');
    c.fillStyle = accent;
    for (let i = 0; i < columns; i++) {
      if (low[i] === Infinity) continue;
      c.globalAlpha = 0.28;
      c.fillRect(left + i, y(high[i]), 1, bottom - y(high[i]));
      c.globalAlpha = 0.5;
      c.fillRect(left + i, y(low[i]), 1, bottom - y(low[i]));
    }
    c.globalAlpha = 1;
    const stepped = (values, toY, ink, thick, dash = []) => {
      c.strokeStyle = ink;
      c.lineWidth = thick;
      c.setLineDash(dash);
      c.beginPath();
      for (let i = 0; i < columns; i++) {
        if (i === 0) c.moveTo(left, toY(values[0]));
        else if (values[i] !== values[i - 1]) c.lineTo(left + i, toY(values[i - 1]));
        if (i > 0 && (values[i] !== values[i - 1] || i === columns - 1))
          c.lineTo(left + i + (i === columns - 1 ? 1 : 0), toY(values[i]));
      }
      c.stroke();
      c.setLineDash([]);
    };
    stepped(high, y, accent, 1.25);
    stepped(pool, y, colour('--muted'), 1.5);
    stepped(peak, y, colour('--strong'), 1.25, [4, 3]);
    if (reserved.some((bytes) => bytes > 0)) stepped(reserved, y, colour('--danger'), 1.25, [1, 3]);

    const stripTop = height - AXIS - STRIP,
      stripY = (share) => stripTop + STRIP - share * (STRIP - 2);
    c.strokeStyle = colour('--line');
    c.lineWidth = 1;
    for (const line of [stripTop + 0.5, stripTop + STRIP + 0.5]) {
      c.beginPath();
      c.moveTo(left, line);
      c.lineTo(left + plot, line);
      c.stroke();
    }
    c.fillStyle = colour('--fragmentation');
    c.globalAlpha = 0.25;
    for (let i = 0; i < columns; i++) c.fillRect(left + i, stripY(broken[i]), 1, stripTop + STRIP - stripY(broken[i]));
    c.globalAlpha = 1;
    stepped(broken, stripY, colour('--fragmentation'), 1.25);

    // Words last, each on a ground of its own, so that no line runs through them.
    const word = (text, x, at, align, ink) => {
      c.textAlign = align;
      c.font = '11px system-ui, sans-serif';
      const size = c.measureText(text).width,
        from = align === 'right' ? x - size : align === 'center' ? x - size / 2 : x;
      c.fillStyle = colour('--surface');
      c.globalAlpha = 0.8;
      c.fillRect(from - 2, at - 7, size + 4, 14);
      c.globalAlpha = 1;
      c.fillStyle = ink;
      c.fillText(text, x, at);
    };
    for (const bytes of lines.slice(1))
      word(formatBytes(Math.round(bytes)), left + 2, y(bytes) + 9, 'left', colour('--muted'));
    word('fragmentation', left + 2, stripTop + 9, 'left', colour('--fragmentation'));
    word('100%', left + plot - 2, stripTop + 9, 'right', colour('--muted'));
    const ticks = width > 700 ? 5 : 3;
    for (let i = 0; i < ticks; i++) {
      const share = i / (ticks - 1),
        position = this.positionOf(share);
      const from = device.timeAt(0),
        to = device.timeAt(device.count);
      const text = this.byTime ? formatTime(from + share * (to - from)) : formatCount(position + device.eventsLost);
      word(
        text,
        left + share * plot,
        height - AXIS / 2 + 2,
        i === 0 ? 'left' : i === ticks - 1 ? 'right' : 'center',
        colour('--muted'),
      );
    }
    c.textAlign = 'left';
    for (const compaction of device.compactions) {
      drawMark(c, 'compaction', left + this.shareOf(compaction.at) * plot, MARKS / 2 - 1, colour('--accent'), bottom);
    }
    for (const failure of device.failures) {
      if (failure.at >= 0)
        drawMark(c, 'failure', left + this.shareOf(failure.at) * plot, MARKS / 2 - 1, colour('--danger'), bottom);
    }
  }
}

/** A diamond for a compaction, a triangle for a failure, with a thin line down to `bottom`. */
function drawMark(c, what, x, y, colour, bottom) {
  c.fillStyle = c.strokeStyle = colour;
  c.beginPath();
  if (what === 'compaction')
    for (const [dx, dy] of [
      [0, -5.5],
      [5.5, 0],
      [0, 5.5],
      [-5.5, 0],
    ])
      c.lineTo(x + dx, y + dy);
  else
    for (const [dx, dy] of [
      [-6, -5],
      [6, -5],
      [0, 6],
    ])
      c.lineTo(x + dx, y + dy);
  c.closePath();
  c.fill();
  if (!bottom) return;
  c.globalAlpha = 0.55;
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(Math.round(x) + 0.5, y + 6);
  c.lineTo(Math.round(x) + 0.5, bottom);
  c.stroke();
  c.globalAlpha = 1;
}
