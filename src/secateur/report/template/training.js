// The free energy and its parts, by epoch: three panels over a common axis.
charts.energy = (holder) => {
  const { epoch, complexity, accuracy, starts, epochs } = record.history;
  if (!epoch.length) return false;
  const minus = accuracy.map((a) => (a === null ? null : -a));
  const total = complexity.map((c, i) => (c === null || minus[i] === null ? null : c + minus[i]));
  const series = [['free energy', total, 'energy'], ['complexity', complexity, 's-complexity'], ['−accuracy', minus, 's-accuracy']];
  const heights = [190, 110, 110], gap = 36;
  const { svg, width, height } = canvas(holder, heights.reduce((a, b) => a + b + gap, 0) + 60,
    `Three lines over ${epochs} epochs, ending at a free energy of ${figure(total[total.length - 1], 5)} nats. Vertical lines are pruning rounds.`);
  const left = 52, right = width - 8, bottom = height - 44;
  const x = linear([0, epochs], [left, right]);
  const defs = make('defs', {}, svg);
  // Early values do not determine the range of the axis.
  const settled = (starts.length ? starts[0] : epochs) * 0.12;
  const late = (values) => values.filter((_, i) => epoch[i] >= settled);
  const labels = [];
  let top = 40;
  const scales = series.map(([name, values, cls], panel) => {
    const y = linear(extent(late(values), 0.08), [top + heights[panel], top]);
    make('rect', { x: left, y: top, width: right - left, height: heights[panel] }, make('clipPath', { id: `inside-${panel}` }, defs));
    axisY(svg, y, left, right, `${name}, nats`, panel ? top - 9 : 11, panel ? 3 : 4);
    const group = make('g', { 'clip-path': `url(#inside-${panel})` }, svg);
    const cuts = [...starts, Infinity];
    let from = 0;
    cuts.forEach((cut) => {  // one line for each training: rounds are not connected
      let to = from;
      while (to < epoch.length && epoch[to] <= cut) to++;
      path(group, cls, epoch.slice(from, to).map(x), values.slice(from, to).map((v) => (v === null ? null : y(v))));
      from = to;
    });
    top += heights[panel] + gap;
    return y;
  });
  let last = -Infinity;
  starts.forEach((start, i) => {
    if (i && start === starts[i - 1]) return;  // there was nothing to train
    make('line', { class: 'round', x1: x(start), x2: x(start), y1: 34, y2: bottom - 8 }, svg);
    if (x(start) - last > 16) labels.push([x(start), i + 1]);
    if (x(start) - last > 16) last = x(start);
  });
  for (const [place, number] of labels) make('text', { x: place, y: 29, 'text-anchor': 'middle', class: 'strong' }, svg, String(number));
  axisX(svg, x, bottom, left, right, 'epoch');
  const phase = (e) => {
    const number = starts.filter((s) => s < e).length;
    return number ? `training after round ${number}${record.rounds[number - 1].kept ? '' : ' (undone)'}` : 'first training';
  };
  interactive(svg, epoch.map((e, i) => ({
    x: x(e), y: scales[0](total[i]), column: [34, bottom],
    tell: () => [`Epoch ${Math.round(e)}`, phase(e), `free energy ${figure(total[i], 6)}`, `complexity ${figure(complexity[i], 5)}`, `−accuracy ${figure(minus[i], 6)}`],
  })), 30);
  return true;
};

charts.rounds = (holder) => {
  const rounds = record.rounds;
  if (!rounds.length) return false;
  const { svg, width, height } = canvas(holder, 330,
    `For each of ${rounds.length} rounds the estimated change, the actual change and the change after training, in nats.`);
  const left = 52, right = Math.min(width - 12, left + 130 * rounds.length + 60), top = 48, bottom = height - 40;
  const values = rounds.flatMap((r) => [r.estimated, r.at_once, r.trained, 0]);
  const [low, high] = extent(values, 0);
  const y = stretched([Math.min(low * 1.25, -1), Math.max(high * 1.25, 1)], [bottom, top], 1);
  const x = linear([0.5, rounds.length + 0.5], [left, right]);
  axisY(svg, y, left, right, null, 0);
  make('text', { class: 'strong', x: 0, y: 12 }, svg, 'change of the free energy, nats');
  legend(svg, left, 32, [['hollow', 'estimated'], ['f-ink', 'actual'], ['f-brand', 'after training']]);
  make('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }, svg);
  const marks = [];
  const step = Math.ceil(rounds.length / ((right - left) / 26));
  rounds.forEach((r, i) => {
    const at = x(i + 1), spread = Math.min(14, (right - left) / rounds.length / 4), faded = r.kept ? '' : ' faint';
    if (i % step === 0) make('text', { x: at, y: bottom + 17, 'text-anchor': 'middle' }, svg, String(i + 1));
    if (r.estimated !== null && r.at_once !== null) {
      make('line', { class: 'link' + faded, x1: at - spread, x2: at, y1: y(r.estimated), y2: y(r.at_once) }, svg);
    }
    const tell = (what, value) => () => [`Round ${i + 1}: ${r.move}${r.kept ? '' : ' (undone)'}`, `${r.before} → ${r.left} weights`,
      `${what} ${figure(value)} nats`, `divergence ${figure(r.divergence)} nats`];
    [['hollow', r.estimated, -spread, 'estimated'], ['f-ink', r.at_once, 0, 'actual'], ['f-brand', r.trained, spread, 'after training']].forEach(([cls, value, shift, what]) => {
      if (value === null) return;
      make('circle', { class: cls + faded, cx: at + shift, cy: y(value), r: 4.5 }, svg);
      marks.push({ x: at + shift, y: y(value), r: 4.5, tell: tell(what, value) });
    });
  });
  make('text', { x: right, y: bottom + 34, 'text-anchor': 'end' }, svg, 'round');
  interactive(svg, marks);
  return true;
};
