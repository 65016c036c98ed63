// The parts around map and chart: numbers, legends, what a block is, a failed request to scale, a compaction's moves.

function fillNumbers(list, meter, view) {
  const { device } = view,
    n = view.numbers,
    atEnd = view.position === device.count;
  let peak = device.series.peak[view.position];
  // The highest there ever was may lie before the oldest event that is kept.
  if (atEnd) peak = Math.max(peak, device.stats.peak_in_use ?? 0);
  const rows = [
    ['In use', n.inUse, 'bytes asked for by blocks that are held'],
    [atEnd ? 'Peak' : 'Peak so far', peak, 'the most that was ever in use'],
    ['Pool', n.pool, 'bytes held from the device'],
    ['Limit', n.limit, 'what the pool never exceeds'],
    ['Free', n.free, 'bytes of the pool that no block holds'],
    ['Largest hole', n.hole, 'the longest free stretch: no larger block fits without compaction or growth'],
    ['Fragmentation', formatPercent(n.fragmentation), '1 − largest hole / free'],
    ['Pinned', n.pinned, 'bytes that may not move, part of “in use”'],
    ['Pending', n.pending, 'their owners let go, but a program still uses them'],
  ];
  if (n.reserved || device.strategy === 'tpu') rows.push(['Scratch', n.reserved, 'reserved for programs that run']);
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(() => element('div', {}, element('dt'), element('dd'))));
  }
  rows.forEach(([name, value, title], i) => {
    const [term, shown] = list.children[i].children;
    setText(term, name);
    setText(shown, typeof value === 'string' ? value : formatBytes(value));
    list.children[i].title = typeof value === 'string' ? title : `${formatCount(value)} bytes: ${title}`;
  });

  const whole = Math.max(n.limit, n.pool, 1);
  const parts = [
    ['in-use', 'in use', n.inUse],
    ['pending', 'pending', n.pending],
    ['slack', 'rounding', n.slack],
    ['reserved', 'scratch', n.reserved],
    ['free', 'free', n.free],
  ];
  if (meter.children.length !== parts.length)
    meter.replaceChildren(...parts.map(([name]) => element('i', { class: name })));
  parts.forEach(([, name, bytes], i) => {
    meter.children[i].style.width = `${(100 * bytes) / whole}%`;
    meter.children[i].title = `${name}: ${formatBytes(bytes)}`;
  });
  meter.setAttribute(
    'aria-label',
    `Of the limit of ${formatBytes(whole)}: ` +
      parts.map(([, name, bytes]) => `${name} ${formatBytes(bytes)}`).join(', '),
  );
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A block as lines of text: its origin, then its facts. */
function describeBlock(view, span) {
  const { device } = view,
    { snapshot, spans, slots } = device;
  const slot = spans.slot[span],
    state = spans.state[span];
  if (state === RESERVED) {
    return [
      'Reserved for programs’ scratch',
      `${formatBytes(spans.bytes[span])} at ${formatAddress(spans.address[span])}`,
    ];
  }
  const requested = slots.requested[slot],
    taken = spans.bytes[span];
  const size =
    requested === taken ? formatBytes(taken) : `${formatBytes(requested)} asked for, ${formatBytes(taken)} taken`;
  const facts = [`${size}, at ${formatAddress(spans.address[span])}, block ${slots.id[slot]}`];
  const words = [STATE_NAMES[state]];
  if (state === PINNED) words[0] = `pinned: ${snapshot.pinReason(spans.pin[span])}`;
  if (state === PENDING) words[0] = 'pending: its owner let go, a program still uses it';
  if (slots.step[slot] > 0) words.push(`made by execution ${formatCount(slots.step[slot])}`);
  const age = formatAge(slots.born[slot], device.timeAt(view.position));
  words.push(slots.born[slot] < 0 ? `allocated ${age}` : `age ${age}`);
  const made = stackOf(snapshot, slots.origin[slot])
    .slice(0, 8)
    .map((frame, i) => `${i ? 'called from' : 'made by'} ${formatName(frame.name, 100)}`);
  return [formatName(snapshot.origins.label[slots.origin[slot]]), ...facts, words.join(', '), ...made];
}

function describeHit(view, hit) {
  if (hit.span !== undefined) return describeBlock(view, hit.span);
  return [
    'Hole',
    `${formatBytes(hit.hole.bytes)} free at ${formatAddress(hit.hole.address)}`,
    hit.hole.address === view.largestHole.address
      ? 'the largest hole'
      : `the largest hole is ${formatBytes(view.largestHole.bytes)}`,
  ];
}

function describeEvent(device, position) {
  if (!device.count) return 'no events were recorded';
  if (position === 0) return 'before the oldest event kept';
  const { events, snapshot } = device,
    i = position - 1,
    kind = events.kind[i];
  const origin = formatName(snapshot.origins.label[events.origin[i]] ?? 'unknown', 90);
  const size = formatBytes(events.bytes[i]);
  switch (kind) {
    case EVENT.region:
      return `a region of ${size} came`;
    case EVENT.regionGone:
      return `a region of ${size} was given back`;
    case EVENT.outOfMemory:
      return `out of memory: ${size} for ${origin}`;
    case EVENT.compaction:
      return `compaction: ${formatCount(events.block[i])} blocks moved, ${size} in ${formatTime(events.step[i])}`;
    case EVENT.spill:
      return events.other[i]
        ? `spilled: ${size}, ${origin}, in ${formatTime(events.step[i])}`
        : `spilled: ${size}, ${origin}, whose copy was there`;
    case EVENT.return:
      return `back: ${size}, ${origin}, in ${formatTime(events.step[i])}`;
    case EVENT.asked:
      return `other processes were asked for ${size}, which took ${formatTime(events.step[i])}`;
    case EVENT.given:
      return `${size} went to other processes, in ${formatTime(events.step[i])}`;
    case EVENT.scratch:
      return `scratch is ${size} from here on`;
    default:
      return `${EVENT_NAMES[kind] ?? 'unknown event'} ${size}, ${origin}`;
  }
}

/** A picture of a colour and pattern, as the map paints it. */
function swatch(painter, state, group) {
  const canvas = element('canvas', { 'aria-hidden': 'true' });
  const ratio = 2,
    w = 18 * ratio,
    h = 12 * ratio;
  canvas.width = w;
  canvas.height = h;
  canvas.style.width = '18px';
  canvas.style.height = '12px';
  const image = new ImageData(w, h),
    pixels = new Uint32Array(image.data.buffer);
  const [main, second, pattern] = state === null ? [painter.hole, 0, 0] : painter.style(state, group, false);
  pixels.fill(main);
  if (pattern) drawPattern(pixels, w, 0, h, 0, w, second, pattern, ratio);
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

function fillLegend(list, painter, groups, byAge, device) {
  const item = (state, group, text) =>
    element('li', { title: text }, swatch(painter, state, group), element('span', { text }));
  const items = byAge
    ? ageNames().map((name, i) => item(LIVE, AGE_GROUP + i, name))
    : groups.names.map((name, i) => item(LIVE, i, formatName(name, 60)));
  if (!byAge && groups.rest) items.push(item(LIVE, REST_GROUP, 'all others'));
  const sample = byAge ? AGE_GROUP + 3 : 0;
  items.push(item(PINNED, sample, 'pinned'), item(PENDING, sample, 'pending'), item(null, 0, 'hole'));
  if (device.series.reserved.some((bytes) => bytes > 0)) items.push(item(RESERVED, RESERVED_GROUP, 'scratch'));
  list.replaceChildren(...items);
}

function fillChartLegend(list, device, style) {
  const line = (text, colour, dash = 'solid') => {
    const rule = element('hr', { 'aria-hidden': 'true' });
    rule.style.borderTop = `2px ${dash} var(${colour})`;
    return element('li', {}, rule, element('span', { text }));
  };
  const mark = (what, text, colour) => {
    const canvas = element('canvas', { width: 28, height: 28, 'aria-hidden': 'true' });
    canvas.style.width = canvas.style.height = '14px';
    const c = canvas.getContext('2d');
    c.scale(2, 2);
    drawMark(c, what, 7, 7, style.getPropertyValue(colour).trim());
    return element('li', {}, canvas, element('span', { text }));
  };
  const items = [
    line('in use', '--accent'),
    line('pool', '--muted'),
    line('peak', '--strong', 'dashed'),
    line('fragmentation', '--fragmentation'),
  ];
  if (device.series.reserved.some((bytes) => bytes > 0)) items.push(line('scratch', '--danger', 'dotted'));
  if (device.failures.some((failure) => failure.at >= 0)) items.push(mark('failure', 'out of memory', '--danger'));
  if (device.compactions.length) items.push(mark('compaction', 'compaction', '--accent'));
  list.replaceChildren(...items);
}

/** The failure to speak of at a position: the last one up to it, else the first, so that the page does not jump. */
function failureAt(device, position) {
  let found = device.failures[0] ?? null;
  for (const failure of device.failures) if (failure.at <= position) found = failure;
  return found;
}

/** Bars of one scale: the request, all that was free, and the largest holes; a line shows where the request ends. */
function fillFailure(parts, device, failure, on) {
  const origins = device.snapshot.origins;
  const what = formatName(origins.label[failure.origin] ?? 'unknown', 120);
  parts.title.textContent = `Out of memory: ${formatBytes(failure.bytes)} for ${what}`;
  parts.when.textContent =
    failure.at < 0
      ? 'Before the oldest event kept.'
      : `At event ${formatCount(failure.at + device.eventsLost)}, ${formatTime(device.timeAt(failure.at))}. ` +
        'The dashed line is where the request ends.';
  parts.text.textContent = failure.text;
  parts.show.hidden = failure.at < 0;
  const whole = Math.max(failure.bytes, failure.free, 1);
  const rows = [
    ['request', 'Request', failure.bytes, null],
    ['all', 'All free', failure.free, null],
  ];
  const holes = failure.at < 0 ? [] : new View(device).seek(failure.at).largestHoles(4);
  if (!holes.length) rows.push(['', 'Largest hole', failure.hole, null]);
  holes.forEach((hole, i) => rows.push(['', i ? `Hole ${i + 1}` : 'Largest hole', hole.bytes, hole]));
  const cells = [];
  for (const [kind, name, bytes, hole] of rows) {
    const fill = element('div', { class: `fill ${kind}` });
    fill.style.width = `${(100 * bytes) / whole}%`;
    const track = element('div', { class: 'track' }, fill);
    if (kind !== 'request') {
      const limit = element('div', { class: 'limit' });
      limit.style.left = `${(100 * failure.bytes) / whole}%`;
      track.append(limit);
    }
    const label = hole
      ? element('button', {
          type: 'button',
          text: name,
          title: `Show it: ${formatAddress(hole.address)}`,
          onclick: () => on.hole(failure, hole),
        })
      : element('span', { text: name });
    cells.push(label, track, element('span', { class: 'size', text: formatBytes(bytes) }));
  }
  parts.bars.replaceChildren(...cells);
}

/** The compaction to speak of at a position: the one that it lies in, else the nearest. */
function compactionAt(device, position) {
  let found = null,
    distance = Infinity;
  for (const compaction of device.compactions) {
    const away = position < compaction.before ? compaction.before - position : Math.max(0, position - compaction.at);
    if (away < distance) [found, distance] = [compaction, away];
  }
  return found;
}

/** Two strips, memory before and after, and a ribbon for each block that was moved. */
function drawRibbons(canvas, device, compaction, groupOf, painter, style) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = canvas.clientWidth,
    height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext('2d');
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const before = new View(device).seek(compaction.before),
    after = new View(device).seek(compaction.at);
  const { regions, spans, slots, events } = device;
  const bounds = new Map();
  for (const view of [before, after]) {
    for (let r = 0; r < view.regionCount; r++)
      bounds.set(regions.address[view.regions[r]], regions.bytes[view.regions[r]]);
  }
  const starts = [...bounds.keys()].sort((a, b) => a - b),
    offsets = [];
  let total = 0;
  for (const start of starts) {
    offsets.push(total);
    total += bounds.get(start);
  }
  const scale = width / Math.max(1, total);
  const place = (address) => {
    const r = Math.max(0, lastAtOrBelow(starts, starts.length, address));
    return starts.length ? (offsets[r] + address - starts[r]) * scale : 0;
  };
  const strip = 24,
    caption = 16,
    top = caption,
    bottom = height - caption - strip;
  const muted = style.getPropertyValue('--muted').trim();
  c.font = '11px system-ui, sans-serif';
  c.textBaseline = 'middle';
  c.fillStyle = muted;
  c.fillText(`before: largest hole ${formatBytes(before.largestHole.bytes)}`, 0, caption / 2 - 1);
  c.fillText(`after: largest hole ${formatBytes(after.largestHole.bytes)}`, 0, height - caption / 2 + 1);
  /** @type {[View, number][]} */
  const strips = [
    [before, top],
    [after, bottom],
  ];
  for (const [view, y] of strips) {
    c.fillStyle = hex(painter.holeRgb);
    c.fillRect(0, y, width, strip);
    let painted = -1;
    for (let i = 0; i < view.count; i++) {
      const span = view.spans[i],
        x = place(spans.address[span]),
        end = Math.max(x + 1, x + spans.bytes[span] * scale);
      if (end <= painted) continue;
      const state = spans.state[span];
      const group = state === RESERVED ? RESERVED_GROUP : groupOf[slots.origin[spans.slot[span]]];
      c.fillStyle = hex(painter.colours[group]);
      c.fillRect(x, y, end - x - (end - x > 4 ? 0.75 : 0), strip);
      if (state === PINNED) {
        c.fillStyle = style.getPropertyValue('--strong').trim();
        c.fillRect(x, y + strip - 4, Math.max(1.5, end - x), 4);
      }
      painted = Math.floor(end);
    }
    for (const offset of offsets.slice(1)) {
      c.fillStyle = style.getPropertyValue('--surface').trim();
      c.fillRect(offset * scale - 1, y, 2, strip);
    }
  }
  const a = top + strip,
    b = bottom,
    middle = (a + b) / 2;
  const shown = compaction.moves.toSorted((x, y) => events.bytes[y] - events.bytes[x]).slice(0, 400);
  for (const move of shown) {
    const from = place(events.other[move]),
      to = place(events.address[move]),
      size = Math.max(1, events.bytes[move] * scale);
    c.fillStyle = hex(painter.colours[groupOf[events.origin[move]] ?? REST_GROUP]);
    c.globalAlpha = 0.45;
    c.beginPath();
    c.moveTo(from, a);
    c.bezierCurveTo(from, middle, to, middle, to, b);
    c.lineTo(to + size, b);
    c.bezierCurveTo(to + size, middle, from + size, middle, from + size, a);
    c.closePath();
    c.fill();
  }
  c.globalAlpha = 1;
  canvas.setAttribute(
    'aria-label',
    `Memory before and after: ${compaction.moves.length} moves, largest hole ` +
      `${formatBytes(before.largestHole.bytes)} before, ${formatBytes(after.largestHole.bytes)} after`,
  );
}
