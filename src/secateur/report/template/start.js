// Charts are drawn for the available width, and again when it changes.
function draw(holder) {
  holder.dataset.width = holder.clientWidth;
  if (!charts[holder.dataset.chart](holder)) holder.textContent = 'There is nothing to show here.';
}
const holders = [...document.querySelectorAll('[data-chart]')];
holders.forEach(draw);
const watcher = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target } of entries) if (Math.abs(target.clientWidth - target.dataset.width) > 2) draw(target);
}));
holders.forEach((holder) => watcher.observe(holder));
