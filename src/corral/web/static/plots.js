// Plots; the table below each one holds the same data.

const SERIES = [1, 2, 3, 4, 5, 6, 7].map((n) => `--plot-${n}`);
const colour = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};
const fade = (rgb, part) => rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${part})`);

function figure(value, unit) {
  if (value == null) return "–";
  const text = value >= 100 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(2) : String(Number(value.toPrecision(2)));
  return unit === "$" ? `$${text}` : `${text} ${unit}`;
}

function draw(box) {
  const plot = JSON.parse(box.dataset.plot);
  const ink = colour("--soft");
  const line = colour("--line");
  let values = plot.series.map((each) => each.values);
  if (plot.kind === "stack") {
    // Stack the series; the topmost is drawn first.
    const sums = plot.x.map(() => 0);
    values = values.map((each) => each.map((value, n) => (sums[n] += value || 0)));
  }
  const daily = plot.kind !== "line";
  const bars = daily ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined;
  const order = plot.kind === "stack" ? values.map((_, n) => values.length - 1 - n) : values.map((_, n) => n);
  const series = order.map((n) => {
    const stroke = colour(SERIES[n % SERIES.length]);
    return {
      label: plot.series[n].label, stroke, width: daily ? 0 : 1.5, paths: bars,
      fill: daily ? stroke : fade(stroke, 0.08),
      points: { show: false },
      value: (_, __, ___, at) => figure(at == null ? null : plot.series[n].values[at], plot.unit),
    };
  });
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const least = plot.unit === "%" ? 1 : 1e-6;
  const half = daily ? 43_200 : 0;
  box.replaceChildren();
  box.uplot?.destroy();
  box.uplot = new uPlot(
    {
      width: box.clientWidth, height: box.clientHeight - 28, tzDate: daily ? (at) => uPlot.tzDate(new Date(at * 1e3), "UTC") : undefined,
      cursor: { y: false, points: { show: plot.kind === "line" } },
      scales: {
        x: { range: (_, low, high) => [low - half, high + half] },
        y: { range: (_, low, high) => [0, Math.max(high || 0, least) * 1.08] },
      },
      axes: [
        { ...axis, size: 30, grid: { show: false }, values: daily ? "{D} {MMM}" : "{HH}:{mm}:{ss}", space: daily ? 70 : 60 },
        { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => figure(tick, plot.unit)) },
      ],
      series: [{ label: daily ? "Day" : "Time", value: daily ? "{YYYY}-{MM}-{DD}" : "{HH}:{mm}:{ss}" }, ...series],
    },
    [plot.x, ...order.map((n) => values[n])],
    box,
  );
  box.dataset.drawn = "1";
}

const boxes = [...document.querySelectorAll("[data-plot]")];
const drawAll = () => boxes.filter((box) => box.clientWidth).forEach(draw);
drawAll();
document.addEventListener("corral:theme", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 150);
});
