// Who made what is held: each frame of Python code is as wide as the bytes that it, and what it called, made.

/** The frames of the code that made an origin's blocks, the innermost first; none if not recorded. */
function stackOf(snapshot, origin) {
  const { frames, stacks, origins } = snapshot,
    found = [];
  for (let stack = origins.stack[origin]; stack >= 0 && found.length < 1000; stack = stacks.caller[stack])
    found.push(stacks.frame[stack]);
  return found.map((frame) => {
    const file = frames.file[frame];
    return { name: `${frames.name[frame]}  ${file.slice(file.lastIndexOf('/') + 1)}:${frames.line[frame]}`, file };
  });
}

/** What is held at a view's instant as a tree, the outermost frames at its root, origins at its leaves. */
function flameOf(view) {
  const { snapshot } = view.device,
    sums = view.byOrigin();
  const node = (name, file) => ({ name, file, bytes: 0, origin: -1, inner: new Map() });
  const root = node('all that is held', '');
  for (let origin = 0; origin < sums.blocks.length; origin++) {
    const bytes = sums.bytes[origin];
    if (!bytes) continue;
    const made = stackOf(snapshot, origin).reverse();
    if (!made.length) made.push({ name: 'no stack was recorded', file: '' });
    made.push({ name: snapshot.origins.what[origin], file: '' });
    let at = root;
    at.bytes += bytes;
    for (const { name, file } of made) {
      const key = `${file} ${name}`;
      if (!at.inner.has(key)) at.inner.set(key, node(name, file));
      at = at.inner.get(key);
      at.bytes += bytes;
    }
    at.origin = origin;
  }
  return root;
}

/** A hue for a text, so that a function has one colour. */
function hueOf(text) {
  let hash = 0;
  for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
  return hash % 360;
}

const FLAME_ROW = 22,
  FLAME_LEAST = 0.002;

class Flame {
  /** `on`: select({origin}). */
  constructor(host, on) {
    this.host = host;
    this.on = on;
    this.root = null;
    this.top = null;
  }

  render(view) {
    this.root = flameOf(view);
    this.top = this.root;
    this.#draw();
  }

  #draw() {
    const boxes = [];
    let deepest = 0;
    const add = (node, from, depth) => {
      const share = node.bytes / (this.top.bytes || 1);
      if (share < FLAME_LEAST) return;
      deepest = Math.max(deepest, depth);
      const name = formatName(node.name, 120);
      const text = `${name} · ${formatBytes(node.bytes)}, ${formatPercent(node.bytes / (this.root.bytes || 1))}`;
      const box = element('button', {
        type: 'button',
        text: depth ? name : text,
        title: node.file ? `${text}\n${node.file}` : text,
        'aria-label': text,
        onclick: () => this.#choose(node),
      });
      box.style.left = `${100 * from}%`;
      box.style.width = `${100 * share}%`;
      box.style.top = `${FLAME_ROW * depth}px`;
      if (node.file) box.style.setProperty('--hue', String(hueOf(node.name)));
      else box.className = node.origin >= 0 ? 'leaf' : 'plain';
      boxes.push(box);
      let at = from;
      for (const inner of [...node.inner.values()].sort((a, b) => b.bytes - a.bytes)) {
        add(inner, at, depth + 1);
        at += inner.bytes / (this.top.bytes || 1);
      }
    };
    add(this.top, 0, 0);
    this.host.style.height = `${FLAME_ROW * (deepest + 1)}px`;
    this.host.replaceChildren(...boxes);
  }

  /** A frame becomes as wide as the page, and again all that is held; an origin is chosen on the map. */
  #choose(node) {
    if (node.origin >= 0 && !node.inner.size) {
      this.on.select({ origin: node.origin });
      return;
    }
    this.top = node === this.top ? this.root : node;
    this.#draw();
    this.host.firstChild?.focus();
  }
}
