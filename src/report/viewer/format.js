// Numbers for people, and which colour stands for what.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

function formatBytes(bytes) {
  const size = Math.abs(bytes);
  let unit = 0;
  while (unit < UNITS.length - 1 && size >= 1024 ** (unit + 1)) unit++;
  if (unit === 0) return `${bytes} B`;
  const value = bytes / 1024 ** unit;
  // 1023.96 KiB would else be shown as 1024.0 KiB.
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

function formatChange(bytes) {
  return bytes === 0 ? '0' : (bytes > 0 ? '+' : '−') + formatBytes(Math.abs(bytes));
}

function formatCount(count) {
  return count.toLocaleString('en-GB');
}

/** `2 holes`, `1 hole`. */
function counted(count, what) {
  return `${formatCount(count)} ${what}${count === 1 ? '' : 's'}`;
}

function formatPercent(share) {
  const percent = share * 100;
  return percent > 0 && percent < 0.1 ? '<0.1%' : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}

function formatTime(nanoseconds) {
  const seconds = nanoseconds / 1e9;
  if (seconds < 0) return `−${formatTime(-nanoseconds)}`;
  if (seconds < 1e-6) return `${Math.round(nanoseconds)} ns`;
  if (seconds < 1e-3) return `${(nanoseconds / 1e3).toFixed(1)} µs`;
  if (seconds < 1) return `${(nanoseconds / 1e6).toFixed(nanoseconds < 1e7 ? 2 : 1)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, '0')} s`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, '0')} min`;
}

function formatAge(born, now) {
  return born < 0 ? 'before recording' : formatTime(Math.max(0, now - born));
}

function formatAddress(address) {
  return `0x${address.toString(16)}`;
}

/** A count of nanoseconds since 1970 that is too long for a number, as date and time of the reader's zone. */
function formatInstant(text) {
  if (!/^\d{1,19}$/.test(text) || text === '0') return 'at an unknown time';
  const date = new Date(Number(BigInt(text) / 1000000n));
  const two = (value) => String(value).padStart(2, '0');
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  );
}

/** A name with its ends when it is too long to read; control and direction marks shown as what they are. */
function formatName(text, most = 240) {
  const plain = text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, '�');
  return plain.length <= most ? plain : `${plain.slice(0, most - 40)}…${plain.slice(-39)}`;
}

// Groups: programs and other origins that hold most, one colour each, then the rest. The colours are told apart with
// any kind of colour vision (Okabe and Ito, "Color Universal Design", 2008), less their black; red is left to failures.
const GROUP_COLOURS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#b8a500', '#8c6bb1'];
const REST_COLOUR = '#8b93a1';
const RESERVED_COLOUR = '#6b7280';
// Ages: one ramp whose lightness falls, as viridis does; the ends are kept off both backgrounds.
const AGE_COLOURS = ['#fbdf3a', '#a5d538', '#4ac16d', '#1fa187', '#277f8e', '#365c8d', '#46327e'];
const REST_GROUP = GROUP_COLOURS.length;
const AGE_GROUP = REST_GROUP + 1;
const RESERVED_GROUP = AGE_GROUP + AGE_COLOURS.length;
const ALL_COLOURS = [...GROUP_COLOURS, REST_COLOUR, ...AGE_COLOURS, RESERVED_COLOUR];

/** Bounds between the colours of ages, in nanoseconds: 1, 3, 10, ... of a power of ten that suits the recording. */
let ageBounds = [1e6, 3e6, 1e7, 3e7, 1e8, 3e8];

function scaleAges(duration) {
  const unit = 10 ** (Math.ceil(Math.log10(Math.max(1e4, duration))) - 3);
  ageBounds = [1, 3, 10, 30, 100, 300].map((factor) => factor * unit);
}

function ageNames() {
  const short = (bound) => formatTime(bound).replace(/\.0+ /, ' ');
  return [...ageBounds.map((bound) => `<${short(bound)}`), `${short(ageBounds.at(-1))} and more`];
}

function ageGroup(born, now) {
  if (born < 0) return AGE_GROUP + AGE_COLOURS.length - 1;
  const age = now - born;
  for (let i = 0; i < ageBounds.length; i++) if (age < ageBounds[i]) return AGE_GROUP + i;
  return AGE_GROUP + AGE_COLOURS.length - 1;
}

/** Which colour each origin has: by program, or by kind where there is none. The same for all devices; those of the
 * first snapshot stay as they are when a second one comes. */
class Groups {
  constructor(snapshots) {
    const ranked = [];
    const nameOf = (origins, origin) => origins.program[origin] || KIND_NAMES[origins.kind[origin]] || 'other';
    for (const snapshot of snapshots) {
      const bytes = new Map();
      for (const device of snapshot.devices) {
        const view = new View(device);
        for (const position of new Set([device.peakAt, device.count])) {
          const rows = view.seek(position).byOrigin();
          for (let i = 0; i < snapshot.origins.count; i++) {
            if (!rows.bytes[i]) continue;
            const name = nameOf(snapshot.origins, i);
            bytes.set(name, (bytes.get(name) ?? 0) + rows.bytes[i]);
          }
        }
      }
      const order = [...bytes.keys()].sort((a, b) => bytes.get(b) - bytes.get(a) || (a < b ? -1 : 1));
      ranked.push(...order.filter((name) => !ranked.includes(name)));
    }
    this.names = ranked.slice(0, GROUP_COLOURS.length);
    this.rest = ranked.length > this.names.length;
    const group = new Map(this.names.map((name, i) => [name, i]));
    this.of = new Map();
    for (const snapshot of snapshots) {
      this.of.set(
        snapshot,
        snapshot.origins.label.map((_, i) => group.get(nameOf(snapshot.origins, i)) ?? REST_GROUP),
      );
    }
  }
}

/** Makes an element. Data goes in as text only, never as markup. */
function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === 'text') made.textContent = value;
    else if (key === 'class') made.className = value;
    else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children);
  return made;
}
