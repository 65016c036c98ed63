// Reads a snapshot: schema pjrt-arena.snapshot, version 1. What is wrong with a file is said in a sentence.

const EVENT = {
  allocate: 0,
  free: 1,
  retire: 2,
  pin: 3,
  unpin: 4,
  move: 5,
  region: 6,
  regionGone: 7,
  outOfMemory: 8,
  compaction: 9,
  scratch: 10,
  spill: 11,
  return: 12,
  asked: 13,
  given: 14,
};
const EVENT_NAMES = [
  'allocate',
  'free',
  'retire',
  'pin',
  'unpin',
  'move',
  'region',
  'region given back',
  'out of memory',
  'compaction',
  'scratch',
  'spill',
  'return',
  'asked the group',
  'given to the group',
];
const LIVE = 0,
  PINNED = 1,
  PENDING = 2,
  RESERVED = 3;
const STATE_NAMES = ['live', 'pinned', 'pending', 'reserved for scratch'];
const KIND_NAMES = ['unknown', 'results', 'from host', 'copies', 'transfers', 'engine scratch', 'other'];
const PIN_NOT_KNOWN = 255;
const SCHEMA = 'pjrt-arena.snapshot',
  VERSION = 1;

/** What is wrong with a file, as a sentence for the user. */
class SnapshotError extends Error {}

/** The snapshot in `text`: JSON, or a page of this viewer with JSON inside. */
function readSnapshot(text) {
  let json = text;
  if (/^\s*</.test(text)) {
    const found = /<script(?=[^>]*\sid="snapshot")[^>]*>([^<]*)<\/script>/.exec(text);
    if (!found) throw new SnapshotError('This page holds no memory snapshot.');
    json = found[1];
  }
  if (json.trim() === '' || json.trim().startsWith('@'))
    throw new SnapshotError('There is no snapshot in this page yet.');
  let raw;
  try {
    raw = JSON.parse(json);
  } catch (error) {
    throw new SnapshotError(`The snapshot is not JSON, or was cut off: ${error.message}`);
  }
  if (raw === null || typeof raw !== 'object' || raw.schema !== SCHEMA) {
    throw new SnapshotError('This is not a memory snapshot of pjrt-arena: “schema” is not “pjrt-arena.snapshot”.');
  }
  if (raw.version !== VERSION) {
    throw new SnapshotError(
      `This snapshot is of version ${text_(raw.version)}, and this viewer reads version ${VERSION}. ` +
        'Open it with the page that the same version of pjrt-arena writes.',
    );
  }
  return new Snapshot(raw);
}

function text_(value) {
  return typeof value === 'string' ? value : value === undefined || value === null ? '' : String(value);
}

function number_(value, otherwise = 0) {
  return typeof value === 'number' && Number.isFinite(value) ? value : otherwise;
}

/** A table of columns, each as a Float64Array; `names[0]` says how many rows there are. */
function columns(table, names, where, optional = []) {
  const source = table ?? {};
  const rows = Array.isArray(source[names[0]]) ? source[names[0]].length : 0;
  const result = { rows };
  for (const name of names) {
    const values = source[name] ?? [];
    if (!Array.isArray(values) || values.length !== rows) {
      throw new SnapshotError(
        `The snapshot is damaged: ${where}.${name} has ${values.length} rows, ${where}.${names[0]} has ${rows}.`,
      );
    }
    const column = new Float64Array(rows);
    for (let i = 0; i < rows; i++) column[i] = number_(values[i]);
    result[name] = column;
  }
  for (const name of optional)
    if (Array.isArray(source[name])) Object.assign(result, columns(source, [names[0], name], where));
  return result;
}

class Snapshot {
  constructor(raw) {
    this.library = text_(raw.library);
    this.process = number_(raw.process);
    this.command = text_(raw.command);
    this.began = text_(raw.began_unix_ns);
    this.written = text_(raw.written_unix_ns);
    this.now = number_(raw.now);
    this.pinReasons = Array.isArray(raw.pin_reasons) ? raw.pin_reasons.map(text_) : [''];
    const origins = raw.origins ?? {};
    const labels = Array.isArray(origins.label) && origins.label.length ? origins.label : ['unknown'];
    this.origins = {
      count: labels.length,
      label: labels.map((label) => text_(label) || 'unknown'),
      program: labels.map((_, i) => text_(origins.program?.[i])),
      kind: labels.map((_, i) => number_(origins.kind?.[i])),
      stack: labels.map((_, i) => number_(origins.stack?.[i], -1)),
      /** Without the place in the user's code, which is the last part of a label that has one. */
      what: labels.map((label, i) =>
        number_(origins.stack?.[i], -1) < 0 ? text_(label) || 'unknown' : text_(label).replace(/ at [^]*$/, ''),
      ),
    };
    const list = (values) => (Array.isArray(values) ? values : []);
    const frames = raw.frames ?? {},
      stacks = raw.stacks ?? {};
    this.frames = {
      file: list(frames.file).map(text_),
      line: list(frames.line).map((line) => number_(line)),
      name: list(frames.name).map(text_),
    };
    // A stack has a frame that there is, and was called from an older one.
    const known = this.frames.file.length;
    this.stacks = {
      frame: list(stacks.frame).map((frame) => Math.min(Math.max(number_(frame), 0), known - 1)),
      caller: list(stacks.caller).map((caller, i) => (number_(caller, -1) < i ? number_(caller, -1) : -1)),
    };
    const most = known ? Math.min(this.stacks.frame.length, this.stacks.caller.length) : 0;
    this.origins.stack = this.origins.stack.map((stack) => (stack < most ? stack : -1));
    this.hasStacks = this.origins.stack.some((stack) => stack >= 0);
    const devices = Array.isArray(raw.devices) ? raw.devices : [];
    this.devices = devices.map((device, i) => new Device(device ?? {}, this, `devices[${i}]`));
  }

  /** The same run of the same process: a block's id means the same block in both. */
  isOfSameRun(other) {
    return this.process === other.process && this.began === other.began;
  }

  /** Instants are texts, because they are beyond 2^53. */
  isOlderThan(other) {
    const length = Math.max(this.written.length, other.written.length);
    return this.written.padStart(length, '0') < other.written.padStart(length, '0');
  }

  pinReason(pin) {
    return pin === PIN_NOT_KNOWN ? 'reason no longer recorded' : this.pinReasons[pin] || 'no reason recorded';
  }
}
