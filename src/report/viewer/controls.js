// What a user can do: buttons, keys, files. And the start: the snapshot that is in the page.

/** A second file: the snapshot to compare with, or the first one where the page came without. */
function openText(text, name) {
  let snapshot;
  try {
    snapshot = readSnapshot(text);
  } catch (error) {
    say(`${formatName(name, 80)}: ${sentenceOf(error)}`);
    return;
  }
  if (!state.device) {
    showSnapshot(snapshot);
    return;
  }
  if (!snapshot.devices.length) {
    say(`${formatName(name, 80)} has no devices to compare with.`);
    return;
  }
  say('');
  state.other = snapshot;
  state.otherName = formatName(name, 60);
  compare(true);
}

function sentenceOf(error) {
  return error instanceof SnapshotError ? error.message : `The snapshot could not be read: ${error.message}`;
}

async function openFile(file) {
  if (file) openText(await file.text(), file.name);
}

function play(on) {
  state.playing = on ? performance.now() : 0;
  const button = get('play');
  button.textContent = on ? '❚❚' : '▶';
  button.title = on ? 'Pause' : 'Play';
  button.setAttribute('aria-label', button.title);
  if (!on) return;
  // The whole history in about 30 seconds, but no event slower than 12 a second.
  const from = state.position === state.device.count ? 0 : state.position,
    began = state.playing;
  const rate = Math.max(12, state.device.count / 30) / 1000;
  const step = (now) => {
    if (state.playing !== began) return;
    const next = Math.min(state.device.count, from + Math.floor((now - began) * rate));
    if (next !== state.position) seek(next);
    if (next === state.device.count) play(false);
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function toMark(direction) {
  const { device, position } = state;
  const marks = [
    0,
    device.count,
    ...device.compactions.map((one) => one.at),
    ...device.failures.map((one) => one.at),
  ].filter((at) => at >= 0);
  marks.sort((a, b) => direction * (a - b));
  seek(marks.find((at) => direction * (at - position) > 0) ?? position);
}

function listen() {
  const click = (id, act) => get(id).addEventListener('click', act);
  click('theme', () => setTheme(!isDark()));
  click('open', () => get('file').click());
  click('close', () => compare(false));
  click('back', () => seek(state.position - 1));
  click('forward', () => seek(state.position + 1));
  click('mark-back', () => toMark(-1));
  click('mark-forward', () => toMark(1));
  click('play', () => play(!state.playing));
  click('peak', () => seek(state.device.peakAt));
  click('last', () => seek(state.device.count));
  click('zoom-in', () => map.zoom(2));
  click('zoom-out', () => map.zoom(0.5));
  click('zoom-fit', fitBoth);
  click('failure-show', () => seek(state.failure.at));
  click('moves-before', () => seek(state.compaction.before));
  click('moves-after', () => seek(state.compaction.at));
  get('file').addEventListener('change', (event) => {
    openFile(event.target.files[0]);
    event.target.value = '';
  });
  get('device').addEventListener('change', (event) => showDevice(state.snapshot.devices[event.target.value]));
  get('colour').addEventListener('change', (event) => {
    state.byAge = event.target.value === 'age';
    refresh('theme', 'table');
  });
  get('axis').addEventListener('change', (event) => {
    chart.byTime = event.target.value === 'time';
    refresh('seek');
  });
  get('search').addEventListener('input', (event) => {
    holders.search = event.target.value;
    state.selection = NOTHING;
    refresh('table');
  });
  const slider = get('slider');
  slider.addEventListener('input', () => {
    play(false);
    seek(chart.byTime ? chart.positionOf(slider.value / 1e4) : Number(slider.value));
  });
  slider.addEventListener('keydown', (event) => {
    const page = Math.max(10, Math.round(state.device.count / 50));
    const to = {
      ArrowLeft: state.position - 1,
      ArrowDown: state.position - 1,
      ArrowRight: state.position + 1,
      ArrowUp: state.position + 1,
      PageDown: state.position - page,
      PageUp: state.position + page,
      Home: 0,
      End: state.device.count,
    }[event.key];
    if (event.key === ' ') play(!state.playing);
    else if (to === undefined) return;
    else {
      play(false);
      seek(to);
    }
    event.preventDefault();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => setTheme(event.matches));
  new ResizeObserver(() => {
    if (!state.view) return;
    if (map.bytesPerRow === map.fitted) fitBoth();
    else {
      map.layout();
      second.layout();
    }
    drawPanels(getComputedStyle(root));
    refresh();
  }).observe(get('map'));

  let inside = 0;
  const files = (event) => [...(event.dataTransfer?.types ?? [])].includes('Files');
  addEventListener('dragenter', (event) => {
    if (files(event)) get('drop').hidden = ++inside === 0;
  });
  addEventListener('dragleave', (event) => {
    if (files(event)) get('drop').hidden = --inside <= 0;
  });
  addEventListener('dragover', (event) => {
    if (files(event)) event.preventDefault();
  });
  addEventListener('drop', (event) => {
    if (!files(event)) return;
    event.preventDefault();
    inside = 0;
    get('drop').hidden = true;
    openFile(event.dataTransfer.files[0]);
  });
}

listen();
setTheme(matchMedia('(prefers-color-scheme: dark)').matches);
try {
  showSnapshot(readSnapshot(get('snapshot').textContent));
} catch (error) {
  if (!(error instanceof SnapshotError)) console.error(error);
  say(sentenceOf(error));
  get('open').textContent = 'Open…';
}
/** For the console: what is shown, whether more is still to be drawn, and a way to steer it. */
/** @type {any} */ (window).arenaViewer = {
  state,
  map,
  second,
  frameTimes,
  seek,
  select,
  openText,
  busy: () => frame !== 0 || tablesLater !== 0,
};
