// Growth by origin from one view (A) to another (B), which may be of another run: labels join them, not numbers.

/** One item for each label that either side has; of blocks in both, only where both are of one run of one process. */
function growth(a, b) {
  const sameRun = a.device.snapshot.isOfSameRun(b.device.snapshot) && a.device.name === b.device.name;
  const items = new Map();
  const add = (view, side) => {
    const { origins } = view.device.snapshot,
      sums = view.byOrigin();
    for (let i = 0; i < origins.count; i++) {
      if (!sums.blocks[i]) continue;
      const label = origins.label[i];
      let item = items.get(label);
      if (!item) {
        item = {
          kind: 'growth',
          label,
          tie: items.size,
          a: 0,
          b: 0,
          blocksA: 0,
          blocksB: 0,
          both: sameRun ? 0 : -1,
          change: 0,
          origins: [-1, -1],
        };
        items.set(label, item);
      }
      item[side ? 'b' : 'a'] += sums.bytes[i];
      item[side ? 'blocksB' : 'blocksA'] += sums.blocks[i];
      item.origins[side] = i;
    }
  };
  add(a, 0);
  add(b, 1);
  if (sameRun) {
    const there = new Set();
    eachBlock(a, (id) => there.add(id));
    eachBlock(b, (id, origin) => {
      if (there.has(id)) items.get(b.device.snapshot.origins.label[origin]).both++;
    });
  }
  for (const item of items.values()) item.change = item.b - item.a;
  return { items: [...items.values()], sameRun };
}

function eachBlock(view, visit) {
  const { spans, slots } = view.device;
  for (let i = 0; i < view.count; i++) {
    const span = view.spans[i];
    if (spans.state[span] !== RESERVED) visit(slots.id[spans.slot[span]], slots.origin[spans.slot[span]]);
  }
}

class Growth {
  /** `on`: select(item), changed(). */
  constructor(host, on) {
    this.most = MORE_ORIGINS;
    this.table = new SortableTable(
      host,
      'Growth by origin',
      [
        { key: 'label', title: 'Origin', text: true },
        { key: 'a', title: 'In A', class: 'wide third' },
        { key: 'b', title: 'In B', class: 'wide second' },
        { key: 'change', title: 'Difference', class: 'wider' },
        { key: 'blocksA', title: 'Blocks A', class: 'wide third' },
        { key: 'blocksB', title: 'Blocks B', class: 'wide third' },
        { key: 'both', title: 'In both', class: 'wide second', hint: 'Blocks that are in A and in B' },
      ],
      'change',
      {
        click: (item) => {
          if (item.kind === 'more') {
            this.most += 2 * MORE_ORIGINS;
            on.changed();
          } else on.select(item);
        },
        sorted: () => on.changed(),
        make: (kind) => this.#make(kind),
      },
    );
  }

  #make(kind) {
    const row = element('tr', { class: kind });
    row.name = element('button', { type: 'button', class: 'name' });
    row.swatch = element('span', { class: 'swatch', 'aria-hidden': 'true' });
    if (kind === 'more') {
      row.append(element('td', { colspan: this.table.columns.length }, element('div', { class: 'label' }, row.name)));
      return row;
    }
    row.cells_ = this.table.columns.slice(1).map((column) => element('td', { class: column.class ?? '' }));
    row.append(
      element('th', { scope: 'row' }, element('div', { class: 'label' }, row.swatch, row.name)),
      ...row.cells_,
    );
    return row;
  }

  /** `chosen`: origins that are in focus, of A and of B. */
  render(a, b, groupOf, painter, chosen) {
    const { items, sameRun } = growth(a, b);
    this.table.order(items);
    const shown = items.slice(0, this.most);
    if (items.length > shown.length)
      shown.push({ kind: 'more', text: `${formatCount(items.length - shown.length)} more origins…` });
    this.table.render(
      shown,
      (row, item) => {
        if (item.kind === 'more') {
          setText(row.name, item.text);
          return;
        }
        const label = formatName(item.label),
          side = item.origins[0] >= 0 ? 0 : 1;
        setText(row.name, label);
        row.name.title = label;
        row.swatch.style.background = hex(painter.colours[groupOf[side][item.origins[side]]]);
        const texts = [
          formatBytes(item.a),
          formatBytes(item.b),
          formatChange(item.change),
          formatCount(item.blocksA),
          formatCount(item.blocksB),
          item.both < 0 ? '–' : formatCount(item.both),
        ];
        texts.forEach((text, i) => setText(row.cells_[i], text));
        row.cells_[2].className = `wider ${item.change > 0 ? 'up' : item.change < 0 ? 'down' : ''}`;
        row.classList.toggle('chosen', chosen !== null && chosen[side] === item.origins[side]);
      },
      'Neither holds anything.',
    );
    return {
      change: items.reduce((sum, item) => sum + item.change, 0),
      both: items.reduce((sum, item) => sum + Math.max(0, item.both), 0),
      sameRun,
    };
  }
}
