// Charts over time, drawn by uPlot.

const HEIGHT = 190;
// In seconds: the shortest time that a chart shows.
const SHORTEST = 60;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const curveColour = (number) => colour(`--curve-${number % 8}`);

const twoDigits = (number) => String(number).padStart(2, "0");

// Returns HH:MM:SS of a time in seconds since 1970.
export function clockTime(seconds) {
  const date = new Date(seconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits).join(":");
}

// Returns the times of all points of several curves, and for each curve its values at these times,
// null where it has no point. A point has a time (`at`) and a value.
export function align(curves) {
  const times = [...new Set(curves.flatMap((points) => points.map(({at}) => at)))];
  times.sort((a, b) => a - b);
  const index = new Map(times.map((at, i) => [at, i]));
  const values = curves.map((points) => {
    const row = Array(times.length).fill(null);
    for (const {at, value} of points) row[index.get(at)] = value;
    return row;
  });
  return {times, values};
}

// The colour of an event's mark, by its look.
const LOOKS = new Map([["joined", "--joined"], ["fault", "--alarm"], ["epoch", "--quiet"],
                       ["checkpoint", "--quiet"]]);

// A chart of several curves, with a legend below it, vertical lines for events, and triangles for
// checkpoints.
export class Chart {
  // `figure`: the element that it is added to. `format` returns a value as text.
  constructor(figure, format) {
    this._format = format;
    this._plot = figure.appendChild(document.createElement("div"));
    this._plot.className = "plot";
    this._legend = figure.appendChild(document.createElement("div"));
    this._legend.className = "legend";
    this._events = [];
    this._curves = [];
    this._data = [[]];
    new ResizeObserver(() => this._resize()).observe(this._plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._create());
  }

  // `curves`: for each curve its name, its values (null for a gap), the number of its colour, and
  // whether it continues across gaps.
  update(times, curves, events) {
    this._events = events;
    this._data = [times, ...curves.map((curve) => curve.values)];
    const key = (all) => JSON.stringify(all.map((curve) => [curve.name, curve.number]));
    const sameCurves = key(curves) === key(this._curves);
    this._curves = curves;
    if (this._chart === undefined || !sameCurves) this._create();
    else this._chart.setData(this._data);
    this._showValues(this._chart.cursor.idx);
    // Tests read these.
    this._plot.dataset.points = this._data[1]?.filter((value) => value !== null).length ?? 0;
    this._plot.dataset.marks = JSON.stringify(this._shownEvents().map(({kind}) => kind));
  }

  _create() {
    this._chart?.destroy();
    const axis = {
      stroke: colour("--quiet"),
      grid: {stroke: colour("--line"), width: 1},
      ticks: {stroke: colour("--line"), width: 1, size: 4},
      font: "12px system-ui, sans-serif",
    };
    this._chart = new uPlot({
      width: this._plot.clientWidth || 300,
      height: HEIGHT,
      legend: {show: false},
      cursor: {drag: {x: false, y: false}, y: false},
      scales: {
        x: {range: (_, from, to) => [Math.min(from ?? 0, (to ?? 0) - SHORTEST), to ?? 0]},
        y: {range: (_, from, to) => [Math.min(0, from ?? 0),
                                     to > 0 ? to * 1.1 : from < 0 ? 0 : 1]},
      },
      axes: [
        {...axis, space: 70, values: (_, times) => times.map(clockTime)},
        {...axis, size: 58, values: (_, values) => values.map(this._format)},
      ],
      series: [{}, ...this._curves.map((curve) => ({
        label: curve.name, stroke: curveColour(curve.number), width: 2, points: {size: 4},
        spanGaps: curve.spansGaps ?? false,
      }))],
      hooks: {
        draw: [(chart) => this._drawEvents(chart)],
        setCursor: [(chart) => this._showValues(chart.cursor.idx)],
      },
    }, this._data, this._plot);
    this._createLegend();
  }

  _createLegend() {
    this._values = [];
    this._legend.replaceChildren(...this._curves.map((curve) => {
      const entry = document.createElement("span");
      const swatch = entry.appendChild(document.createElement("span"));
      swatch.className = "swatch";
      swatch.style.background = curveColour(curve.number);
      entry.append(curve.name + " ");
      this._values.push(entry.appendChild(document.createElement("span")));
      return entry;
    }));
  }

  // Shows the values at the cursor, or the last ones if there is no cursor.
  _showValues(index) {
    this._values?.forEach((element, i) => {
      const values = this._data[i + 1];
      const at = index ?? (this._curves[i]?.spansGaps ?
          values.findLastIndex((value) => value !== null) : values.length - 1);
      const value = values?.[at];
      element.textContent = value === null || value === undefined ? "" : this._format(value);
    });
  }

  _shownEvents() {
    const first = this._data[0][0];
    return this._events.filter(
        (event) => event.look !== undefined && first !== undefined && event.at >= first);
  }

  _drawEvents(chart) {
    const {ctx, bbox} = chart;
    const ratio = uPlot.pxRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    // Labels of neighbours are drawn below each other.
    let row = 0;
    // Triangles that would overlap are left out.
    const size = 5 * ratio;
    let lastTriangle = -Infinity;
    for (const event of this._shownEvents()) {
      const x = Math.round(chart.valToPos(event.at, "x", true));
      ctx.strokeStyle = ctx.fillStyle = colour(LOOKS.get(event.look));
      if (event.look === "checkpoint") {
        if (x - lastTriangle < 2.5 * size) continue;
        lastTriangle = x;
        this._drawTriangle(ctx, x, bbox.top + bbox.height, size);
        continue;
      }
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const isRight = x > bbox.left + bbox.width / 2;
      ctx.textAlign = isRight ? "right" : "left";
      ctx.fillText(event.label, x + (isRight ? -4 : 4) * ratio,
                   bbox.top + (2 + 13 * (row++ % 5)) * ratio);
    }
    ctx.restore();
  }

  // Draws a triangle that stands on the axis.
  _drawTriangle(ctx, x, bottom, size) {
    ctx.beginPath();
    ctx.moveTo(x, bottom - 1.6 * size);
    ctx.lineTo(x + size, bottom);
    ctx.lineTo(x - size, bottom);
    ctx.fill();
  }

  _resize() {
    const width = this._plot.clientWidth;
    if (this._chart !== undefined && width > 0 && width !== this._chart.width) {
      this._chart.setSize({width, height: HEIGHT});
    }
  }
}
