// Tables: one that sorts by its columns, and on it the one of holders, which opens to single blocks.

class SortableTable {
  /** Columns: {key, title, class, text}: `text` sorts as text, from A; numbers sort from the largest. */
  constructor(host, caption, columns, key, on) {
    this.columns = columns;
    this.key = key;
    this.descending = !columns.find((column) => column.key === key).text;
    this.on = on;
    this.heads = columns.map((column) =>
      element(
        'th',
        { scope: 'col', class: column.class ?? '' },
        element('button', {
          type: 'button',
          text: column.title,
          title: column.hint,
          onclick: () => this.sortBy(column),
        }),
      ),
    );
    this.body = element('tbody');
    host.append(
      element('table', { 'aria-label': caption }, element('thead', {}, element('tr', {}, ...this.heads)), this.body),
    );
    this.none = element('p', { class: 'none', hidden: true });
    host.append(this.none);
    this.#markHeads();
    this.body.addEventListener('click', (event) => {
      const row = event.target.closest('tr');
      if (row?.item) this.on.click(row.item, event.target.closest('button'));
    });
  }

  sortBy(column) {
    if (this.key === column.key) this.descending = !this.descending;
    else [this.key, this.descending] = [column.key, !column.text];
    this.#markHeads();
    this.on.sorted();
  }

  #markHeads() {
    this.heads.forEach((head, i) => {
      if (this.columns[i].key === this.key)
        head.setAttribute('aria-sort', this.descending ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
  }

  /** Sorts `items`, objects with a value for each column's key; equal ones by `tie`. */
  order(items) {
    const { key, descending } = this,
      sign = descending ? -1 : 1;
    return items.sort((a, b) => (a[key] < b[key] ? -sign : a[key] > b[key] ? sign : a.tie - b.tie));
  }

  /** Makes the rows be `items`; rows that are there already are filled anew. `fill(row, item)` writes one. */
  render(items, fill, none) {
    const rows = this.body.children;
    for (let i = 0; i < items.length; i++) {
      let row = rows[i];
      if (!row || row.kind !== items[i].kind) {
        const fresh = this.on.make(items[i].kind);
        fresh.kind = items[i].kind;
        if (row) row.replaceWith(fresh);
        else this.body.append(fresh);
        row = fresh;
      }
      row.item = items[i];
      fill(row, items[i]);
    }
    while (rows.length > items.length) this.body.lastChild.remove();
    this.none.hidden = items.length > 0;
    this.none.textContent = none;
  }
}

const MORE_ORIGINS = 40,
  MORE_BLOCKS = 40;

class Holders {
  /** `on`: select({origin} or {span}), changed(). */
  constructor(host, on) {
    this.on = on;
    this.host = host;
    this.open = new Set();
    this.most = MORE_ORIGINS;
    this.mostBlocks = new Map();
    this.search = '';
    this.table = new SortableTable(
      host,
      'Holders by origin',
      [
        { key: 'label', title: 'Origin', text: true },
        { key: 'blocks', title: 'Blocks', class: 'slim' },
        { key: 'bytes', title: 'Bytes', class: 'wide', hint: 'Bytes asked for, pending ones included' },
        { key: 'share', title: 'Share', class: 'slim second' },
        { key: 'age', title: 'Oldest', class: 'wide second', hint: 'Age of the oldest block' },
        { key: 'pinned', title: 'Pinned', class: 'wide third', hint: 'Bytes that may not move' },
      ],
      'bytes',
      {
        click: (item, button) => this.#click(item, button),
        sorted: () => on.changed(),
        make: (kind) => this.#make(kind),
      },
    );
  }

  #click(item, button) {
    if (item.kind === 'origin') {
      if (button?.classList.contains('toggle')) {
        if (!this.open.delete(item.origin)) this.open.add(item.origin);
        this.on.changed();
      } else this.on.select({ origin: item.origin });
    } else if (item.kind === 'block') this.on.select({ span: item.span });
    else {
      if (item.origin === undefined) this.most += MORE_ORIGINS;
      else this.mostBlocks.set(item.origin, (this.mostBlocks.get(item.origin) ?? MORE_BLOCKS) + 4 * MORE_BLOCKS);
      this.on.changed();
    }
  }

  #make(kind) {
    const row = element('tr', { class: kind });
    const label = element('div', { class: 'label' });
    if (kind === 'origin') {
      row.toggle = element('button', { type: 'button', class: 'toggle', text: '▸' });
      row.swatch = element('span', { class: 'swatch', 'aria-hidden': 'true' });
      label.append(row.toggle, row.swatch);
    }
    row.name = element('button', { type: 'button', class: 'name' });
    label.append(row.name);
    if (kind === 'more') {
      row.append(element('td', { colspan: this.table.columns.length }, label));
      return row;
    }
    row.append(element('th', { scope: 'row' }, label));
    row.cells_ = this.table.columns.slice(1).map((column) => element('td', { class: column.class ?? '' }));
    row.append(...row.cells_);
    return row;
  }

  /** Scrolls the table, and nothing else, to the row that is chosen. */
  revealChosen() {
    const row = this.table.body.querySelector('tr.chosen'),
      host = this.host;
    if (!row) return;
    const head = 34,
      top = row.offsetTop,
      bottom = top + row.offsetHeight;
    if (top < host.scrollTop + head) host.scrollTop = top - head;
    else if (bottom > host.scrollTop + host.clientHeight) host.scrollTop = bottom - host.clientHeight;
  }

  /** Origins whose label holds what is searched for; null when nothing is. */
  matches(snapshot) {
    const wanted = this.search.trim().toLowerCase();
    if (!wanted) return null;
    const found = new Set();
    snapshot.origins.label.forEach((label, i) => {
      if (label.toLowerCase().includes(wanted)) found.add(i);
    });
    return found;
  }

  /** `selection`: {origin, slot}, -1 for none. Gives the count of origins that match. */
  render(view, selection, groupOf, painter, byAge) {
    const { device } = view,
      { snapshot } = device,
      sums = view.byOrigin(),
      now = device.timeAt(view.position);
    const matching = this.matches(snapshot);
    const items = [];
    for (let origin = 0; origin < sums.blocks.length; origin++) {
      if (!sums.blocks[origin] || (matching && !matching.has(origin))) continue;
      const born = sums.oldest[origin];
      items.push({
        kind: 'origin',
        origin,
        tie: origin,
        label: snapshot.origins.label[origin],
        blocks: sums.blocks[origin],
        bytes: sums.bytes[origin],
        share: sums.total ? sums.bytes[origin] / sums.total : 0,
        born,
        age: born < 0 ? Infinity : now - born,
        pinned: sums.pinned[origin],
      });
    }
    this.table.order(items);
    const shown = [];
    // The chosen origin is shown wherever it stands.
    let chosen = null;
    for (const [i, item] of items.entries()) {
      if (i < this.most || item.origin === selection.origin) {
        shown.push(item);
        if (item.origin === selection.origin) chosen = item;
        if (this.open.has(item.origin)) this.#blocks(view, item.origin, shown);
      }
    }
    if (items.length > this.most)
      shown.push({ kind: 'more', text: `${formatCount(items.length - this.most)} more origins…` });
    this.table.render(
      shown,
      (row, item) => this.#fill(row, item, view, selection, groupOf, painter, byAge, now),
      matching ? 'No origin matches.' : 'No blocks.',
    );
    return {
      count: items.length,
      blocks: items.reduce((sum, item) => sum + item.blocks, 0),
      bytes: items.reduce((sum, item) => sum + item.bytes, 0),
      chosen,
    };
  }

  #blocks(view, origin, shown) {
    const { spans, slots } = view.device;
    const found = [];
    for (let i = 0; i < view.count; i++) {
      const span = view.spans[i];
      if (spans.state[span] !== RESERVED && slots.origin[spans.slot[span]] === origin) found.push(span);
    }
    found.sort((a, b) => slots.requested[spans.slot[b]] - slots.requested[spans.slot[a]] || a - b);
    const most = this.mostBlocks.get(origin) ?? MORE_BLOCKS;
    for (const span of found.slice(0, most)) shown.push({ kind: 'block', span, origin });
    if (found.length > most)
      shown.push({ kind: 'more', origin, text: `${formatCount(found.length - most)} more blocks…` });
  }

  #fill(row, item, view, selection, groupOf, painter, byAge, now) {
    if (item.kind === 'more') {
      setText(row.name, item.text);
      return;
    }
    const { device } = view,
      { snapshot, spans, slots } = device;
    if (item.kind === 'block') {
      const slot = spans.slot[item.span],
        state = spans.state[item.span];
      setText(row.name, `${formatAddress(spans.address[item.span])}${state === LIVE ? '' : ` ${STATE_NAMES[state]}`}`);
      row.name.title = state === PINNED ? snapshot.pinReason(spans.pin[item.span]) : '';
      this.#cells(row, [
        '',
        formatBytes(slots.requested[slot]),
        '',
        formatAge(slots.born[slot], now),
        state === PINNED ? formatBytes(slots.requested[slot]) : '',
      ]);
      row.classList.toggle('chosen', slot === selection.slot);
      return;
    }
    const label = formatName(item.label);
    setText(row.name, label);
    if (row.name.title !== label) row.name.title = label;
    const open = this.open.has(item.origin);
    setText(row.toggle, open ? '▾' : '▸');
    row.toggle.setAttribute('aria-expanded', String(open));
    row.toggle.setAttribute('aria-label', `Blocks of ${label}`);
    row.name.setAttribute('aria-pressed', String(item.origin === selection.origin));
    row.swatch.style.background = hex(painter.colours[byAge ? ageGroup(item.born, now) : groupOf[item.origin]]);
    this.#cells(row, [
      formatCount(item.blocks),
      formatBytes(item.bytes),
      formatPercent(item.share),
      formatAge(item.born, now),
      item.pinned ? formatBytes(item.pinned) : '–',
    ]);
    row.classList.toggle('chosen', item.origin === selection.origin);
  }

  #cells(row, texts) {
    texts.forEach((text, i) => {
      setText(row.cells_[i], text);
      if (row.cells_[i].title !== text) row.cells_[i].title = text;
    });
  }
}
