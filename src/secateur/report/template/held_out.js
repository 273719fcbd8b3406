const targetOf = (holder) => record.held_out.targets[+holder.dataset.target];

function square(holder, description, xLabel, yLabel, from = 0, rows = 0) {
  const { svg, width, height } = canvas(holder, Math.max(280, Math.min(380, holder.clientWidth * 0.8)), description);
  const left = 46, right = width - 10, top = 24, bottom = height - 40;
  const x = linear([from, 1], [left, right]), y = linear([0, 1], [bottom, top]);
  axisY(svg, y, left, right, yLabel, 11, 5);
  if (rows) {  // where chance alone puts 95 % of the points
    const steps = Array.from({ length: 41 }, (_, k) => k / 40), edge = (p, sign) => p + sign * 1.96 * Math.sqrt(p * (1 - p) / rows);
    const corners = [...steps.map((p) => [p, edge(p, 1)]), ...steps.reverse().map((p) => [p, edge(p, -1)])];
    make('path', { class: 'band', d: `M${corners.map(([a, b]) => `${x(a).toFixed(1)} ${y(Math.max(0, Math.min(1, b))).toFixed(1)}`).join('L')}Z` }, svg);
  }
  axisX(svg, x, bottom, left, right, xLabel, 5);
  make('line', { class: 'diagonal', x1: x(from), y1: y(from), x2: x(1), y2: y(1) }, svg);
  return { svg, x, y };
}

charts.coverage = (holder) => {
  const target = targetOf(holder);
  const { svg, x, y } = square(holder, 'Observed against nominal coverage of central intervals.', 'nominal', 'observed coverage', 0, record.held_out.rows);
  const marks = [];
  for (const [when, name, cls, fill] of [['before', 'Trained', 's-before', 'f-cut'], ['after', 'Pruned', 's-after', 'f-kept']]) {
    const seen = target[when].coverage;
    path(svg, cls, [0, ...target.levels, 1].map(x), [0, ...seen, 1].map(y));
    target.levels.forEach((level, i) => {
      const at = { x: x(level), y: y(seen[i]), r: 3.2 };
      make('circle', { class: fill, cx: at.x, cy: at.y, r: at.r }, svg);
      marks.push({ ...at, tell: () => [`${name}: ${(100 * level).toFixed(0)} % intervals`, `contain ${percent(seen[i])} of the rows`] });
    });
  }
  interactive(svg, marks.reverse(), 20);
  return true;
};

// 95 % interval of a fraction that was observed in a number of rows (Wilson).
function wilson(share, rows, z = 1.96) {
  const size = 1 + z * z / rows, middle = (share + z * z / (2 * rows)) / size;
  const half = (z / size) * Math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

charts.reliability = (holder) => {
  const target = targetOf(holder);
  const { svg, x, y } = square(holder, 'Accuracy of predictions against their probability.', 'probability of the predicted class', 'accuracy', Math.min(0.5, 1 / target.classes.length));
  const marks = [], rows = target.after.bins.reduce((sum, bin) => sum + bin.rows, 0);
  for (const [when, name, fill] of [['before', 'Trained', 'f-cut'], ['after', 'Pruned', 'f-kept']]) {
    const bins = target[when].bins;
    for (const bin of bins) {
      const at = { x: x(bin.confidence), y: y(bin.right), r: 3 + 9 * Math.sqrt(bin.rows / rows) };
      if (when === 'after') {
        const [low, high] = wilson(bin.right, bin.rows);
        make('line', { class: 's-after', x1: at.x, x2: at.x, y1: y(low), y2: y(high), 'stroke-opacity': 0.6 }, svg);
      }
      make('circle', { class: fill, cx: at.x, cy: at.y, r: at.r, opacity: when === 'after' ? 0.85 : 0.6 }, svg);
      marks.push({ ...at, tell: () => [`${name}: ${bin.rows} rows`, `mean probability ${percent(bin.confidence)}`, `accuracy ${percent(bin.right)}`] });
    }
  }
  interactive(svg, marks.reverse(), 20);
  return true;
};

charts.residuals = (holder) => {
  const { row, observed, mean, deviation, low, high } = targetOf(holder).points;
  if (!row.length) return false;
  const residual = observed.map((o, i) => o - mean[i]);
  const halves = low.map((l, i) => 0.5 * (high[i] - l));
  const { svg, width, height } = canvas(holder, Math.max(280, Math.min(380, holder.clientWidth * 0.8)), `${row.length} held-out rows: observed minus predicted, against the prediction.`);
  const left = 52, right = width - 10, top = 24, bottom = height - 40;
  const reach = Math.max(...finite(residual).map(Math.abs), ...finite(halves)) * 1.08 || 1;
  const x = linear(extent(mean), [left, right]), y = linear([-reach, reach], [bottom, top]);
  const order = mean.map((_, i) => i).sort((a, b) => mean[a] - mean[b]);
  // Half of each 95 % interval as a smooth band: the median of neighbours.
  const near = Math.max(1, Math.floor(order.length / 20));
  const band = order.map((_, k) => {
    const some = order.slice(Math.max(0, k - near), k + near + 1).map((i) => halves[i]).sort((a, b) => a - b);
    return some[some.length >> 1];
  });
  const upper = order.map((i, k) => `${x(mean[i]).toFixed(1)} ${y(band[k]).toFixed(1)}`);
  const lower = order.map((i, k) => `${x(mean[i]).toFixed(1)} ${y(-band[k]).toFixed(1)}`).reverse();
  axisY(svg, y, left, right, 'observed − predicted', 11);
  make('path', { class: 'band', d: `M${[...upper, ...lower].join('L')}Z` }, svg);
  axisX(svg, x, bottom, left, right, 'predicted');
  interactive(svg, order.map((i) => {
    const at = { x: x(mean[i]), y: y(residual[i]), r: 3.4 };
    make('circle', { class: 'f-kept', cx: at.x, cy: at.y, r: at.r, opacity: 0.7 }, svg);
    return { ...at, tell: () => [`Held-out row ${row[i] + 1}`, `observed ${figure(observed[i])}`, `predicted ${figure(mean[i])} ± ${figure(deviation[i], 3)}`, `residual ${figure(residual[i])}`] };
  }), 16);
  return true;
};
