const MOST_LINES = 1500, MOST_POINTS = 2500;

// All weights that the record has of one array: [index, mean, deviation, delta_f].
function* weightsOf(leaf, when) {
  const state = leaf[when];
  for (let k = 0; k < state.mean.length; k++) {
    if (!(state.deviation[k] > 0)) continue;
    yield { index: state.index ? state.index[k] : k, mean: state.mean[k], deviation: state.deviation[k], delta_f: state.delta_f[k] };
  }
}
const certainty = (w) => Math.min(1, Math.abs(w.mean) / w.deviation / 4);
const tellWeight = (name, w) => [name, `mean ${figure(w.mean)}`, `standard deviation ${figure(w.deviation)}`, `delta_f ${figure(w.delta_f)} nats`];

function nodeName(layer, index) {
  const sizes = record.network.sizes;
  if (layer === 0) return record.inputs[index] ? record.inputs[index].name : `input ${index + 1}`;
  if (layer < sizes.length - 1) return `unit ${index + 1} of hidden ${layer}`;
  const classes = record.targets.length === 1 && record.targets[0].classes;
  if (classes && classes.length === sizes[layer]) return classes[index];
  return record.targets[index] ? record.targets[index].name : `output ${index + 1}`;
}

function drawNetwork(holder, when) {
  const { sizes, used } = record.network;
  // Every matrix leads from one layer to the next, a linear path from the first to the last.
  const matrices = [], biases = [];
  for (const leaf of record.leaves) (leaf.shape.length === 2 ? matrices : biases).push(leaf);
  const ends = matrices.map((leaf, i) => leaf.path === "['linear']" ? [0, sizes.length - 1] : [i, i + 1]);
  const largest = Math.max(...sizes);
  const height = Math.max(200, Math.min(640, largest * 22)) + 24;
  const { svg, width } = canvas(holder, height, `Layers of ${sizes.join(', ')} nodes with ${record.live[when === 'before' ? 0 : 1]} weights.`);
  const most = Math.max(6, Math.min(20, Math.floor(width / 26)));
  const longest = (layer) => Math.min(most, Math.max(0, ...Array.from({ length: Math.min(sizes[layer], 200) }, (_, i) => nodeName(layer, i).length)));
  const last = sizes.length - 1;
  const left = 18 + 7 * longest(0), right = width - 18 - 7 * longest(last);
  const xs = sizes.map((_, layer) => left + (layer / last) * (right - left));
  const room = sizes.map((n) => Math.min(44, (height - 24) / n));
  const y = (layer, i) => height / 2 + (i - (sizes[layer] - 1) / 2) * room[layer];
  const alive = (layer, i) => when === 'before' || used[layer][i];
  let weights = [];
  matrices.forEach((leaf, matrix) => {
    const [start, end] = ends[matrix];
    for (const w of weightsOf(leaf, when)) {
      const from = Math.floor(w.index / sizes[end]), to = w.index % sizes[end];
      weights.push({ ...w, line: [xs[start], y(start, from), xs[end], y(end, to)], matrix, from, to });
    }
  });
  weights.sort((a, b) => b.delta_f - a.delta_f);
  const all = record.live[when === 'before' ? 0 : 1] - biases.reduce((sum, leaf) => sum + leaf[when].live, 0);
  weights = weights.slice(0, MOST_LINES);
  const strongest = matrices.map((_, matrix) => Math.max(1e-9, ...weights.filter((w) => w.matrix === matrix).map((w) => Math.abs(w.mean))));
  const slim = Math.max(0.2, Math.min(1, Math.sqrt(250 / Math.max(1, weights.length))));  // the more lines, the thinner
  const lines = make('g', { 'stroke-linecap': 'round' }, svg);
  const marks = [];
  [...weights].reverse().forEach((w) => {
    make('line', {
      class: w.mean >= 0 ? 'positive' : 'negative', x1: w.line[0], y1: w.line[1], x2: w.line[2], y2: w.line[3],
      'stroke-width': slim * (0.6 + 3.4 * Math.abs(w.mean) / strongest[w.matrix]), 'stroke-opacity': slim * (0.06 + 0.94 * certainty(w)),
    }, lines);
    marks.push({ line: w.line, tell: () => tellWeight(`${nodeName(ends[w.matrix][0], w.from)} → ${nodeName(ends[w.matrix][1], w.to)}`, w) });
  });
  marks.reverse();
  sizes.forEach((n, layer) => {
    const radius = Math.max(1.2, Math.min(5.5, room[layer] / 3));
    for (let i = 0; i < n; i++) make('circle', { class: alive(layer, i) ? 'node' : 'node off', cx: xs[layer], cy: y(layer, i), r: radius }, svg);
    if (layer === 0 || layer === last) for (let i = 0; i < n; i++) {
      if (room[layer] < 10 && i % Math.ceil(10 / room[layer])) continue;
      make('text', { x: xs[layer] + (layer ? 11 : -11), y: y(layer, i) + 4, 'text-anchor': layer ? 'start' : 'end', class: alive(layer, i) ? 'f' : 'off' }, svg,
        shorten(nodeName(layer, i), most));
    }
    if (layer === 0) return;
    for (const w of weightsOf(biases[layer - 1], when)) {
      const at = { x: xs[layer], y: y(layer, w.index), r: radius + Math.min(2.5, room[layer] / 4) };
      make('circle', { class: 'ring ' + (w.mean >= 0 ? 'positive' : 'negative'), cx: at.x, cy: at.y, r: at.r, 'stroke-width': Math.min(2, room[layer] / 4), 'stroke-opacity': 0.06 + 0.94 * certainty(w) }, svg);
      marks.push({ ...at, tell: () => tellWeight(`bias of ${nodeName(layer, w.index)}`, w) });
    }
  });
  if (all > weights.length) make('text', { x: width, y: height - 2, 'text-anchor': 'end' }, svg, `the strongest ${weights.length} of ${all} lines`);
  interactive(svg, marks, 9);
  return true;
}
charts['network-before'] = (holder) => drawNetwork(holder, 'before');
charts['network-after'] = (holder) => drawNetwork(holder, 'after');

charts.layers = (holder) => {
  const rows = record.leaves.map((leaf, i) => ({ name: record.names[i], before: leaf.before.live, after: leaf.after.live, all: leaf.shape.reduce((a, b) => a * b, 1) }));
  const shown = rows.slice(0, 40), step = 42;
  const { svg, width } = canvas(holder, shown.length * step + 8, 'For every array of weights, how many are left.');
  const most = Math.max(1, ...shown.map((r) => r.all));
  const x = linear([0, most], [0, width - 70]);
  interactive(svg, shown.map((r, i) => {
    const y = i * step + 20;
    make('text', { x: 0, y: y - 5 }, svg, shorten(r.name, 40));
    make('rect', { class: 'f-cut', x: 0, y, width: Math.max(1.5, x(r.before)), height: 13, rx: 2, opacity: 0.55 }, svg);
    make('rect', { class: 'f-kept', x: 0, y, width: r.after ? Math.max(1.5, x(r.after)) : 0, height: 13, rx: 2 }, svg);
    make('text', { class: 'strong', x: Math.max(1.5, x(r.before)) + 8, y: y + 11 }, svg, `${r.after} of ${r.before}`);
    return { box: [0, y, Math.max(8, x(r.before)), 13], tell: () => [r.name, `${r.before} before`, `${r.after} after`] };
  }), 20);
  return true;
};

charts.scores = (holder) => {
  let points = [];
  record.leaves.forEach((leaf, i) => {
    const left = new Set(Array.from(weightsOf(leaf, 'after'), (w) => w.index));
    for (const w of weightsOf(leaf, 'before')) if (w.delta_f !== null) points.push({ ...w, kept: left.has(w.index), name: record.names[i], columns: leaf.shape[1] });
  });
  if (!points.length) return false;
  const all = points.length, every = Math.ceil(all / MOST_POINTS);
  points = points.filter((p, i) => p.kept || i % every === 0).slice(0, 2 * MOST_POINTS);
  const { svg, width, height } = canvas(holder, 340, `${points.length} weights by mean and delta_f, ${points.filter((p) => p.kept).length} of them remaining at the end.`);
  const left = 46, right = width - 8, top = 22, bottom = height - 40;
  const [low, high] = extent(points.map((p) => p.delta_f), 0);
  const y = stretched([Math.min(-1, low * 1.2), Math.max(1, high * 1.3)], [bottom, top], 1);
  const [most] = [Math.max(...points.map((p) => Math.abs(p.mean))) * 1.06 || 1];
  const x = linear([-most, most], [left, right]);
  axisY(svg, y, left, right, 'delta_f, nats', 11);
  axisX(svg, x, bottom, left, right, 'mean');
  points.sort((a, b) => a.kept - b.kept);
  interactive(svg, points.map((p) => {
    const at = { x: x(p.mean), y: y(p.delta_f), r: p.kept ? 4 : 2.6 };
    make('circle', { class: p.kept ? 'f-kept' : 'f-cut', cx: at.x, cy: at.y, r: at.r, opacity: p.kept ? 0.95 : 0.6 }, svg);
    const place = p.columns ? `${Math.floor(p.index / p.columns) + 1}, ${(p.index % p.columns) + 1}` : `${p.index + 1}`;
    return { ...at, tell: () => tellWeight(`${p.name} [${place}]${p.kept ? '' : ': cut'}`, p) };
  }), 12);
  if (all > points.length) make('text', { x: right, y: top - 8, 'text-anchor': 'end' }, svg, `${points.length} of ${all}`);
  return true;
};
