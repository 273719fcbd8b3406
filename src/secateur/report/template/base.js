// Scales, axes, and inspection of marks with a pointer or with the arrow keys.
const record = JSON.parse(document.getElementById('record').textContent);
const tip = document.getElementById('tip');
const charts = {};

function make(name, attributes, parent, text) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) node.setAttribute(key, typeof value === 'number' ? +value.toFixed(2) : value);
  }
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function figure(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const size = Math.floor(Math.log10(Math.abs(value)));
  const text = size < -4 || size > 6 ? value.toExponential(2) : value.toFixed(Math.max(0, Math.min(6, digits - 1 - size)));
  return text.replace(/-/g, '−');
}
const tickText = (value) => String(+value.toPrecision(6)).replace('-', '−');
const percent = (value) => (value === null ? '–' : (100 * value).toFixed(1) + ' %');
const shorten = (text, most) => (text.length > most ? text.slice(0, Math.max(1, most - 1)) + '…' : text);
const finite = (values) => values.filter((v) => v !== null && Number.isFinite(v));

function linear([low, high], [from, to]) {
  if (!(high > low)) { low -= 0.5; high = low + 1; }
  const scale = (v) => from + ((v - low) / (high - low)) * (to - from);
  scale.ticks = (count) => {
    const raw = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  };
  return scale;
}

// Linear around zero, logarithmic far from it.
function stretched([low, high], [from, to], unit) {
  const bend = (v) => Math.asinh(v / unit);
  const inner = linear([bend(low), bend(high)], [from, to]);
  const scale = (v) => inner(bend(v));
  scale.ticks = () => {
    const sizes = [];
    for (let p = Math.ceil(Math.log10(unit)); 10 ** p <= Math.max(-low, high); p++) sizes.push(10 ** p, 3 * 10 ** p);
    return [...sizes.map((s) => -s).reverse(), 0, ...sizes].filter((v) => v >= low && v <= high);
  };
  return scale;
}

function extent(values, margin = 0.05) {
  const known = finite(values);
  if (!known.length) return [0, 1];
  let low = Infinity, high = -Infinity;
  for (const v of known) { if (v < low) low = v; if (v > high) high = v; }
  const more = (high - low || Math.abs(high) || 1) * margin;
  return [low - more, high + more];
}

function canvas(holder, height, description) {
  const width = Math.max(240, Math.floor(holder.clientWidth));
  const svg = make('svg', { viewBox: `0 0 ${width} ${height}`, role: 'group', tabindex: 0 });
  const id = `${holder.dataset.chart}-${holder.dataset.target || 0}`;
  make('title', { id: `title-${id}` }, svg, holder.dataset.label);
  make('desc', { id: `desc-${id}` }, svg, `${description} Use the arrow keys to move between marks.`);
  svg.setAttribute('aria-labelledby', `title-${id}`);
  svg.setAttribute('aria-describedby', `desc-${id}`);
  holder.replaceChildren(svg);
  return { svg, width, height };
}

function axisX(svg, scale, y, left, right, label, count) {
  make('line', { class: 'axis', x1: left, x2: right, y1: y, y2: y }, svg);
  for (const t of scale.ticks(count || Math.max(2, (right - left) / 90))) {
    make('line', { class: 'axis', x1: scale(t), x2: scale(t), y1: y, y2: y + 4 }, svg);
    make('text', { x: scale(t), y: y + 17, 'text-anchor': 'middle' }, svg, tickText(t));
  }
  if (label) make('text', { x: right, y: y + 34, 'text-anchor': 'end' }, svg, label);
}

function axisY(svg, scale, left, right, label, top, count) {
  let last = Infinity;
  for (const t of scale.ticks(count || 5)) {
    const y = scale(t);
    make('line', { class: t === 0 ? 'zero' : 'grid', x1: left, x2: right, y1: y, y2: y }, svg);
    if (Math.abs(y - last) < 13 && t !== 0) continue;
    last = y;
    make('text', { x: left - 7, y: y + 4, 'text-anchor': 'end' }, svg, tickText(t));
  }
  if (label) make('text', { class: 'strong', x: 0, y: top }, svg, label);
}

function path(svg, cls, xs, ys) {
  let text = '', pen = 'M';
  xs.forEach((x, i) => {
    if (ys[i] === null || !Number.isFinite(ys[i])) { pen = 'M'; return; }
    text += `${pen}${x.toFixed(1)} ${ys[i].toFixed(1)}`;
    pen = 'L';
  });
  return make('path', { class: cls, d: text }, svg);
}

function legend(svg, left, y, entries) {
  let x = left;
  for (const [cls, text] of entries) {
    make('circle', { class: cls, cx: x + 5, cy: y - 4, r: 4.5 }, svg);
    const label = make('text', { x: x + 15, y }, svg, text);
    x += 30 + (label.getComputedTextLength ? label.getComputedTextLength() : text.length * 7);
  }
}

// Distance from a point to a mark: a point, a line, a box or a vertical line.
function distance(mark, x, y) {
  if (mark.box) {
    const [left, top, width, height] = mark.box;
    return Math.hypot(Math.max(left - x, 0, x - left - width), Math.max(top - y, 0, y - top - height));
  }
  if (mark.line) {
    const [x1, y1, x2, y2] = mark.line, dx = x2 - x1, dy = y2 - y1;
    const t = Math.max(0, Math.min(1, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1)));
    return Math.hypot(x - x1 - t * dx, y - y1 - t * dy);
  }
  if (mark.column) return Math.abs(mark.x - x);
  return Math.max(0, Math.hypot(mark.x - x, mark.y - y) - (mark.r || 0));
}

function shape(mark, svg) {
  if (mark.box) {
    const [x, y, width, height] = mark.box;
    return make('rect', { class: 'cursor', x: x - 2, y: y - 2, width: width + 4, height: height + 4, rx: 3 }, svg);
  }
  if (mark.line) {
    const [x1, y1, x2, y2] = mark.line;
    return make('line', { class: 'cursor wide', x1, y1, x2, y2 }, svg);
  }
  if (mark.column) return make('line', { class: 'cursor', x1: mark.x, x2: mark.x, y1: mark.column[0], y2: mark.column[1], 'stroke-opacity': 0.5 }, svg);
  return make('circle', { class: 'cursor', cx: mark.x, cy: mark.y, r: (mark.r || 4) + 3 }, svg);
}

// A mark has a place (x, y | line | box | column) and describes itself: tell() -> [title, line, …].
function interactive(svg, marks, reach = 14) {
  if (!marks.length) { svg.removeAttribute('tabindex'); return; }
  let cursor = null, current = -1;
  const hide = () => { tip.hidden = true; if (cursor) cursor.remove(); cursor = null; };
  const show = (index, client) => {
    if (index === current && cursor && client) { place(client.x, client.y); return; }
    hide();
    current = index;
    const mark = marks[index], [title, ...lines] = mark.tell();
    cursor = shape(mark, svg);
    const head = document.createElement('b');
    head.textContent = title;
    tip.replaceChildren(head, ...lines.map((text) => {
      const line = document.createElement('span');
      line.textContent = text;
      return line;
    }));
    tip.hidden = false;
    if (client) { place(client.x, client.y); return; }
    const box = cursor.getBoundingClientRect();
    place(box.left + box.width / 2, box.top + box.height / 2);
  };
  const place = (x, y) => {
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 8 ? x - width - 16 : x + 16;
    tip.style.transform = `translate(${Math.max(8, Math.min(left, innerWidth - width - 8))}px, ${Math.max(8, Math.min(y + 14, innerHeight - height - 8))}px)`;
  };
  const nearest = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let found = -1, least = reach;
    marks.forEach((mark, i) => {
      const d = distance(mark, point.x, point.y);
      if (d < least || (d === least && d === 0)) { least = d; found = i; }
    });
    return found;
  };
  const look = (event) => {
    const index = nearest(event);
    if (index < 0) hide(); else show(index, { x: event.clientX, y: event.clientY });
  };
  svg.addEventListener('pointermove', look);
  svg.addEventListener('pointerdown', look);
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.key === 'Escape') { hide(); return; }
    let next = step === undefined ? { Home: 0, End: marks.length - 1, Enter: Math.max(0, current) }[event.key] : current + step;
    if (next === undefined) return;
    event.preventDefault();
    if (current < 0 && step !== undefined) next = 0;
    show(Math.max(0, Math.min(marks.length - 1, next)));
  });
}
