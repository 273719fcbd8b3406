charts.inputs = (holder) => {
  const live = record.inputs.filter((i) => !i.cut);
  const measured = live.some((i) => i.effect !== undefined);
  const value = (i) => (measured ? i.effect : i.delta_f) || 0;
  const shown = [...live].sort((a, b) => value(b) - value(a)).slice(0, 30), step = 26;
  if (!shown.length) return false;
  const note = live.length > shown.length ? 22 : 0;
  const { svg, width, height } = canvas(holder, shown.length * step + 8 + note, `${shown.length} inputs in order of effect, the largest first: ${shown[0].name}.`);
  const most = Math.max(8, Math.min(28, Math.floor(width / 22)));
  const left = 12 + 6.8 * Math.min(most, Math.max(...shown.map((i) => i.name.length)));
  const values = shown.map(value), low = Math.min(0, ...values), high = Math.max(...values, 1e-9);
  const x = linear([low, high], [left + (low < 0 ? 56 : 0), width - 64]);
  interactive(svg, shown.map((i, k) => {
    const y = k * step + 4, from = Math.min(x(0), x(value(i))), size = Math.max(1.5, Math.abs(x(value(i)) - x(0)));
    make('text', { x: left - 10, y: y + 13, 'text-anchor': 'end', class: 'strong' }, svg, shorten(i.name, most));
    make('rect', { class: value(i) < 0 ? 'f-orange' : 'f-kept', x: from, y, width: size, height: 17, rx: 2 }, svg);
    const after = value(i) >= 0;
    make('text', { x: after ? from + size + 7 : from - 7, y: y + 13, 'text-anchor': after ? 'start' : 'end' }, svg, figure(value(i), 3));
    return {
      box: [from, y, size, 17],
      tell: () => [i.name, ...(i.effect === undefined ? [] : [`effect of shuffling ${figure(i.effect)} nats per row`]),
        ...(i.delta_f === undefined ? [] : [`Σ delta_f ${figure(i.delta_f)} nats`, `${i.before} → ${i.after} weights`]),
        ...(i.column !== i.name ? [`made from ${i.column}`] : [])],
    };
  }), 20);
  make('line', { class: 'axis', x1: x(0), x2: x(0), y1: 0, y2: shown.length * step }, svg);
  if (note) make('text', { x: left, y: height - 6 }, svg, `and ${live.length - shown.length} more`);
  return true;
};
