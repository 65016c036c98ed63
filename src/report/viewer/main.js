// The page: what is chosen, and one pass for each frame that shows it.
//
//   seek, select, zoom, ... --> what has to be done again --> requestAnimationFrame --> draw once

/** An element of the page, of whatever kind the page says. @type {(id: string) => any} */
const get = (id) => document.getElementById(id);
const root = document.documentElement;
const painter = new Painter();
const TABLE_EVERY = 120;
const NOTHING = { slot: -1, origin: -1 };

const state = {
  snapshot: null,
  device: null,
  view: null,
  groups: null,
  position: 0,
  selection: NOTHING,
  byAge: false,
  wantedHole: null,
  playing: 0,
  other: null,
  otherView: null,
  otherName: '',
  otherOrigin: -1,
  failure: null,
  compaction: null,
};
let dirty = new Set(),
  frame = 0,
  tablesDrawn = 0,
  tablesLater = 0;

/**
 * Has `parts` done again in the next frame: 'seek', 'table', 'theme', 'device', 'reveal'; maps are always painted.
 * 'follow' is for tables too, but only so often: the browser needs longer to lay out a table than we for all else.
 */
function refresh(...parts) {
  for (const part of parts) dirty.add(part);
  frame ||= requestAnimationFrame(draw);
}

const map = new ArenaMap(get('map'), 'Memory map. Arrow keys go from block to block, plus and minus zoom.', {
  hover: (hit, event) => showTip(state.view, hit, event),
  select: (hit) => selectHit(state.view, hit),
  redraw: () => refresh(),
  zoom: () => sameScale(map, second),
  fit: () => fitBoth(),
});
const second = new ArenaMap(get('second-map'), 'Memory map of the second snapshot', {
  hover: (hit, event) => showTip(state.otherView, hit, event),
  select: (hit) => selectInSecond(hit),
  redraw: () => refresh(),
  zoom: () => sameScale(second, map),
  fit: () => fitBoth(),
});
const chart = new Timeline(get('chart'), { seek });
const flame = new Flame(get('flame-graph'), { select });
const holders = new Holders(get('holders-table'), { select, changed: () => refresh('table') });
const growthTable = new Growth(get('growth-table'), {
  select: (item) => {
    const same =
      state.selection.slot < 0 && item.origins[0] === state.selection.origin && item.origins[1] === state.otherOrigin;
    state.selection = same ? NOTHING : { slot: -1, origin: item.origins[0] };
    state.otherOrigin = same ? -1 : item.origins[1];
    refresh('table');
  },
  changed: () => refresh('table'),
});

/** Two maps are of one scale, or they could not be compared. */
function sameScale(from, to) {
  if (state.other) {
    to.bytesPerRow = from.bytesPerRow;
    to.layout();
  }
  refresh();
}

function fitBoth() {
  refresh();
  map.bytesPerRow = 0;
  map.layout();
  if (!state.other) return;
  second.bytesPerRow = 0;
  second.layout();
  map.bytesPerRow = second.bytesPerRow = map.fitted = second.fitted = Math.max(map.bytesPerRow, second.bytesPerRow);
  map.layout();
  second.layout();
}

function seek(position) {
  if (!state.device) return;
  state.position = Math.max(0, Math.min(state.device.count, Math.round(position)));
  state.wantedHole = null;
  refresh('seek', 'follow');
}

/** Chooses {span}, or {origin}; the same origin again chooses nothing. */
function select(what) {
  const { spans, slots } = state.device;
  if (what.span !== undefined) {
    const slot = spans.slot[what.span];
    state.selection = spans.state[what.span] === RESERVED ? NOTHING : { slot, origin: slots.origin[slot] };
    map.reveal(spans.address[what.span]);
  } else {
    const again = state.selection.origin === what.origin && state.selection.slot < 0;
    state.selection = again ? NOTHING : { slot: -1, origin: what.origin };
  }
  state.otherOrigin = state.other ? sameLabel(state.snapshot, state.other, state.selection.origin) : -1;
  state.wantedHole = null;
  refresh('table');
}

function selectHit(view, hit) {
  if (hit?.span !== undefined) select({ span: hit.span });
  else {
    state.selection = NOTHING;
    state.otherOrigin = -1;
    state.wantedHole = hit?.hole ?? null;
    refresh('table');
  }
  if (hit?.span !== undefined) refresh('reveal');
}

function selectInSecond(hit) {
  const { spans, slots } = state.otherView.device;
  state.otherOrigin = hit?.span === undefined ? -1 : slots.origin[spans.slot[hit.span]];
  state.selection = { slot: -1, origin: sameLabel(state.other, state.snapshot, state.otherOrigin) };
  refresh('table');
}

function sameLabel(from, to, origin) {
  return origin < 0 ? -1 : to.origins.label.indexOf(from.origins.label[origin]);
}

function showTip(view, hit, event) {
  const tip = get('tip');
  tip.hidden = !hit;
  if (!hit || !view) return;
  const [name, ...facts] = describeHit(view, hit);
  tip.replaceChildren(
    element('b', { text: formatName(name, 140) }),
    ...facts.map((fact) => element('span', { text: fact })),
  );
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

/** How long the last frames took, in milliseconds, for whoever asks in the console. */
const frameTimes = [];

function draw() {
  frame = 0;
  if (!state.device) return;
  const began = performance.now(),
    parts = dirty;
  dirty = new Set();
  const style = getComputedStyle(root);
  if (parts.has('theme')) {
    painter.theme(isDark(), style);
    fillLegend(get('legend'), painter, state.groups, state.byAge, state.device);
    fillChartLegend(get('chart-legend'), state.device, style);
  }
  if (parts.has('seek')) drawPosition(parts.has('device'));
  if (parts.has('seek') || parts.has('theme')) drawPanels(style);
  chart.draw(state.position, style, isDark());
  const soon = tablesDrawn + TABLE_EVERY - began;
  if (parts.has('table') || parts.has('theme') || (parts.has('follow') && soon <= 0)) {
    drawTables();
    tablesDrawn = performance.now();
    clearTimeout(tablesLater);
    tablesLater = 0;
  } else if (parts.has('follow')) {
    followSelection();
    clearTimeout(tablesLater);
    tablesLater = setTimeout(() => {
      tablesLater = 0;
      refresh('follow');
    }, soon);
  }
  drawMaps();
  if (parts.has('reveal')) holders.revealChosen();
  frameTimes.push(performance.now() - began);
  if (frameTimes.length > 600) frameTimes.shift();
}

function drawPosition(fresh) {
  const { device, view, position } = state;
  view.seek(position);
  const groupOf = state.groups.of.get(state.snapshot);
  map.show(view, groupOf);
  if (fresh) fitBoth();
  fillNumbers(get('numbers'), get('meter'), view);
  const slider = get('slider');
  const value = chart.byTime ? Math.round(chart.shareOf(position) * 1e4) : position;
  slider.max = chart.byTime ? 1e4 : device.count;
  slider.value = value;
  const when = `event ${formatCount(position + device.eventsLost)} of ${formatCount(device.count + device.eventsLost)}`;
  const what = position === device.count ? 'the instant of the snapshot' : describeEvent(device, position);
  const text = `${when} · ${formatTime(device.timeAt(position))} · ${what}`;
  slider.setAttribute('aria-valuetext', text);
  setText(get('instant'), text.charAt(0).toUpperCase() + text.slice(1));
  for (const id of ['back', 'mark-back']) get(id).disabled = position === 0;
  for (const id of ['forward', 'last']) get(id).disabled = position === device.count;
  get('mark-forward').disabled = position === device.count;
}

function drawPanels(style) {
  const { device, position } = state;
  const failure = failureAt(device, position);
  get('failure').hidden = !failure;
  if (failure && failure !== state.failure) {
    fillFailure(
      {
        title: get('failure-title'),
        when: get('failure-when'),
        text: get('failure-text'),
        bars: get('failure-bars'),
        show: get('failure-show'),
      },
      device,
      failure,
      {
        hole: (from, hole) => {
          seek(from.at);
          state.wantedHole = hole;
          map.reveal(hole.address);
        },
      },
    );
  }
  state.failure = failure;
  get('failure-show').disabled = failure?.at === position;
  const compaction = compactionAt(device, position);
  get('moves').hidden = !compaction;
  map.moves = compaction && position >= compaction.before && position <= compaction.at ? compaction.moves : null;
  if (compaction) {
    const key = `${get('ribbons').clientWidth} ${get('ribbons').clientHeight} ${isDark()} ${state.groups.names}`;
    if (compaction !== state.compaction || state.ribbonsDrawn !== key) {
      const { compactions } = device,
        number = compactions.indexOf(compaction) + 1;
      setText(
        get('moves-title'),
        compactions.length > 1
          ? `Compaction ${formatCount(number)} of ${formatCount(compactions.length)}`
          : 'Compaction',
      );
      setText(
        get('moves-text'),
        `At event ${formatCount(compaction.at + device.eventsLost)}: ` +
          `${counted(compaction.buffers, 'block')} moved, ${formatBytes(compaction.bytes)} in ` +
          `${formatTime(compaction.duration)}` +
          (compaction.moves.length < compaction.buffers
            ? `; ${formatCount(compaction.moves.length)} of the moves are still recorded`
            : '') +
          '. A foot marks a pinned block.',
      );
      drawRibbons(get('ribbons'), device, compaction, state.groups.of.get(state.snapshot), painter, style);
      state.ribbonsDrawn = key;
    }
    get('moves-before').disabled = position === compaction.before;
    get('moves-after').disabled = position === compaction.at;
  }
  state.compaction = compaction;
}

function followSelection() {
  map.selected = spanOf(state.view, state.selection.slot);
  map.wanted = state.wantedHole;
}

function drawTables() {
  const { view, selection } = state,
    of = state.groups.of;
  followSelection();
  const matching = holders.matches(state.snapshot);
  map.focus =
    selection.origin >= 0 ? new Set([selection.origin]) : state.other && state.otherOrigin >= 0 ? new Set() : matching;
  map.byAge = second.byAge = state.byAge;
  if (state.other) {
    const chosen = selection.origin >= 0 || state.otherOrigin >= 0 ? [selection.origin, state.otherOrigin] : null;
    second.focus = chosen ? new Set([state.otherOrigin]) : null;
    const sums = growthTable.render(
      view,
      state.otherView,
      [of.get(state.snapshot), of.get(state.other)],
      painter,
      chosen,
    );
    const a =
      state.position === state.device.count
        ? 'this snapshot'
        : `this snapshot at event ${formatCount(state.position + state.device.eventsLost)}`;
    const older = state.other.isOlderThan(state.snapshot) ? ', which is older' : '';
    setText(
      get('growth-text'),
      `A is ${a}, B is ${state.otherName}${older}. In all ${formatChange(sums.change)}. ` +
        (sums.sameRun
          ? `${counted(sums.both, 'block')} in both.`
          : 'They are of different runs or devices, so blocks are joined by origin only.'),
    );
  } else {
    const found = holders.render(view, selection, of.get(state.snapshot), painter, state.byAge);
    setText(
      get('holders-count'),
      `${counted(found.count, 'origin')}, ${counted(found.blocks, 'block')}, ` +
        formatBytes(found.bytes) +
        `${holders.search ? ' match' : ''}${state.position === state.device.peakAt ? peakWords() : ''}`,
    );
    if (state.snapshot.hasStacks) flame.render(view);
  }
  drawDetail();
}

function peakWords() {
  const { device } = state,
    before = (device.stats.peak_in_use ?? 0) > device.series.inUse[device.peakAt];
  return before ? ', at the highest instant kept' : ', at the peak';
}

function spanOf(view, slot) {
  if (slot < 0) return -1;
  const { spans } = view.device;
  for (let i = 0; i < view.count; i++) if (spans.slot[view.spans[i]] === slot) return view.spans[i];
  return -1;
}

function drawDetail() {
  const detail = get('detail'),
    { view, selection } = state;
  let lines;
  if (map.selected >= 0) lines = describeBlock(view, map.selected);
  else if (state.wantedHole) lines = describeHit(view, { hole: state.wantedHole });
  else if (selection.slot >= 0) lines = ['The chosen block is not there at this instant.'];
  else if (selection.origin >= 0)
    lines = [
      formatName(state.snapshot.origins.label[selection.origin]),
      'All blocks of this origin stand out on the map.',
      ...stackOf(state.snapshot, selection.origin).map((frame, i) => `${i ? 'called from' : 'made by'} ${frame.name}`),
    ];
  else lines = ['', 'Choose a block on the map or an origin in the table.'];
  const text = lines.join('\n');
  if (detail.shown === text) return;
  detail.shown = text;
  detail.replaceChildren(
    element('b', { text: lines[0] }),
    ...lines.slice(1).flatMap((line, i) => (i || lines[0] ? [element('br'), line] : [line])),
  );
}

function drawMaps() {
  painter.paint(map, state.device.timeAt(state.position));
  const words = (view, of) =>
    `${formatBytes(of.bytesPerRow)} per row · ${counted(view.count, 'block')}, ` +
    counted(view.holes, 'hole') +
    (view.regionCount > 1 ? ` · ${counted(view.regionCount, 'region')}` : '');
  const text = words(state.view, map);
  setText(get('scale'), text);
  map.canvas.setAttribute('aria-label', `${state.device.name}: ${text}`);
  if (!state.other) return;
  painter.paint(second, state.otherView.device.timeAt(state.otherView.position));
  const n = state.otherView.numbers;
  setText(get('second-scale'), words(state.otherView, second));
  setText(
    get('second-about'),
    `${state.otherView.device.name} of ${state.otherName}: in use ${formatBytes(n.inUse)}, ` +
      `pool ${formatBytes(n.pool)}, largest hole ${formatBytes(n.hole)}, ` +
      `fragmentation ${formatPercent(n.fragmentation)}, written ${formatInstant(state.other.written)}`,
  );
}

function isDark() {
  return root.dataset.theme === 'dark';
}

function setTheme(dark) {
  root.dataset.theme = dark ? 'dark' : 'light';
  get('theme').textContent = dark ? '☀ Light' : '☾ Dark';
  refresh('theme', 'table');
}

function showDevice(device) {
  state.device = device;
  state.view = new View(device);
  state.selection = NOTHING;
  state.failure = state.compaction = null;
  chart.show(device);
  scaleAges(device.timeAt(device.count) - Math.min(0, device.timeAt(0)));
  const { snapshot } = state;
  const facts = [
    device.name,
    device.strategy && `strategy ${device.strategy}`,
    `compaction ${device.compaction ? 'on' : 'off'}`,
    `written ${formatInstant(snapshot.written)}`,
    snapshot.library && `pjrt-arena ${snapshot.library}`,
    `${counted(device.count, 'event')} kept` +
      (device.eventsLost ? `, ${formatCount(device.eventsLost)} older ones lost` : ''),
  ];
  get('about').textContent = facts
    .filter(Boolean)
    .map((fact) => formatName(fact, 80))
    .join(' · ');
  const odd = device.strays + device.differences();
  get('note').hidden = odd === 0;
  get('note').textContent =
    `${formatCount(odd)} events or blocks do not fit together, so earlier instants may not be exact.`;
  get('peak').disabled = device.count === 0;
  get('play').disabled = device.count === 0;
  get('slider').disabled = device.count === 0;
  if (state.other) chooseOther();
  dirty.add('device');
  seek(device.count);
  refresh('theme');
}

function chooseOther() {
  const device = state.other.devices.find((one) => one.name === state.device.name) ?? state.other.devices[0];
  state.otherView = new View(device).seek(device.count);
  state.otherOrigin = sameLabel(state.snapshot, state.other, state.selection.origin);
  second.show(state.otherView, state.groups.of.get(state.other));
}

function say(text) {
  get('message').hidden = !text;
  get('message').textContent = text;
  if (text) get('message').scrollIntoView({ block: 'nearest' });
}

function showSnapshot(snapshot) {
  state.snapshot = snapshot;
  get('command').textContent = snapshot.command
    ? `${formatName(snapshot.command, 80)}, process ${snapshot.process}`
    : '';
  document.title = `Memory snapshot ${formatName(snapshot.command, 40)}`.trim();
  if (!snapshot.devices.length) {
    say('This snapshot has no devices: nothing was on the arena when it was written. Another one may be dropped here.');
    get('open').textContent = 'Open…';
    return;
  }
  say('');
  state.groups = new Groups([snapshot]);
  get('flame').hidden = !snapshot.hasStacks;
  get('content').hidden = false;
  get('open').textContent = 'Compare with…';
  get('device-choice').hidden = snapshot.devices.length < 2;
  get('device').replaceChildren(
    ...snapshot.devices.map((device, i) => element('option', { value: i, text: formatName(device.name, 60) })),
  );
  showDevice(snapshot.devices[0]);
}

function compare(on) {
  get('second').hidden = get('growth').hidden = !on;
  get('holders').hidden = on;
  get('flame').hidden = on || !state.snapshot.hasStacks;
  get('columns').classList.toggle('two', on);
  get('map-title').textContent = on ? 'Map of A' : 'Map';
  if (!on) state.other = state.otherView = null;
  state.groups = new Groups(on ? [state.snapshot, state.other] : [state.snapshot]);
  state.otherOrigin = -1;
  if (on) {
    chooseOther();
    get('second-title').textContent = `Map of B: ${state.otherName}`;
  }
  dirty.add('device');
  refresh('seek', 'table', 'theme');
}
