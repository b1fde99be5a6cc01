// Small charts in SVG: stacked bars or lines over equal steps, with a legend that shows the values.

const kSvg = "http://www.w3.org/2000/svg";
const kHeight = 132, kLeft = 46, kTop = 8, kBottom = 18;

function svgElement(tag, attributes, text = "") {
  const made = document.createElementNS(kSvg, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function htmlElement(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// A round number, as its half is, not less than value.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value * (1 - 1e-9));
}

export function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (value >= size) return `${+(value / (unit === "k" ? 1e3 : size)).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(value >= 1000 ? 4 : 3)}`;
}

export class Chart {
  #options;
  #svg = svgElement("svg", {role: "img", height: kHeight});
  #values = [];  // elements of the legend
  #marker = svgElement("path", {class: "marker"});
  #pointed = null;  // share of the axis, 0 to 1; null: the pointer is elsewhere
  #data = null;

  // options: {title, unit, caption, series: [name], kind: "bars" or "lines", most: the axis' end, absent: by the data}
  constructor(parent, options) {
    this.#options = options;
    const figure = htmlElement("figure", "chart");
    const heading = htmlElement("h2", "", options.title);
    heading.append(htmlElement("span", "unit", options.unit));
    const legend = htmlElement("ul", "series");
    options.series.forEach((name, i) => {
      const item = htmlElement("li", `s${i}`, name);
      this.#values.push(htmlElement("b", "", "–"));
      item.append(this.#values[i]);
      legend.append(item);
    });
    const plot = htmlElement("div", "plot");
    plot.append(this.#svg);
    figure.append(heading, legend, plot, htmlElement("figcaption", "", options.caption));
    parent.append(figure);
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => {
      this.#pointed = null;
      this.#showValues();
    });
  }

  // series[i][j]: the value of series i in slot j, null: none. slots: how many the axis has. start: text at its start.
  update(data) {
    this.#data = data;
    this.draw();
  }

  draw() {
    const width = this.#svg.parentElement.clientWidth;
    if (!this.#data || width === 0) return;  // hidden
    this.#svg.setAttribute("width", width);
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${kHeight}`);
    const top = this.#options.most ?? roundUp(Math.max(this.#largest(), 1e-3));
    const height = kHeight - kTop - kBottom;
    const {series, slots} = this.#data;
    const x = (idx) => kLeft + ((width - kLeft) * (idx + slots - series[0].length)) / slots;
    const y = (value) => kTop + height * (1 - Math.min(value / top, 1));
    this.#svg.replaceChildren(...this.#axes(width, top, y));
    const path = this.#options.kind === "bars" ? barsPath : linePath;
    series.forEach((values, i) => {
      const below = values.map((_, j) => series.slice(0, i).reduce((sum, other) => sum + (other[j] ?? 0), 0));
      this.#svg.append(svgElement("path", {class: `${this.#options.kind} s${i}`, d: path(values, below, x, y)}));
    });
    this.#svg.append(this.#marker);
    this.#showValues();
  }

  #largest() {
    const {series} = this.#data;
    const isStacked = this.#options.kind === "bars";
    const all = series[0].map((_, j) => {
      const values = series.map((one) => one[j] ?? 0);
      return isStacked ? values.reduce((a, b) => a + b, 0) : Math.max(...values);
    });
    return Math.max(0, ...all);
  }

  #axes(width, top, y) {
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(svgElement("line", {class: "grid", x1: kLeft, x2: width, y1: y(value), y2: y(value)}));
      parts.push(svgElement("text", {x: kLeft - 6, y: y(value) + 4, "text-anchor": "end"}, shortNumber(value)));
    }
    const bottom = kHeight - 4;
    parts.push(svgElement("text", {x: kLeft, y: bottom}, this.#data.start));
    parts.push(svgElement("text", {x: width, y: bottom, "text-anchor": "end"}, "now"));
    return parts;
  }

  #point(event) {
    const {left, width} = this.#svg.getBoundingClientRect();
    const share = (event.clientX - left - kLeft) / (width - kLeft);
    this.#pointed = share >= 0 && share < 1 ? share : null;
    this.#showValues();
  }

  // Those of the slot that is pointed at, or the latest.
  #showValues() {
    if (!this.#data) return;
    const {series, slots} = this.#data;
    const numUsed = series[0].length;
    const slot = Math.floor((this.#pointed ?? 1) * slots);
    const idx = slot - slots + numUsed;
    const isPointed = idx >= 0 && idx < numUsed;
    const texts = series.map((values) => shortNumber(values[isPointed ? idx : numUsed - 1]));
    texts.forEach((text, i) => { this.#values[i].textContent = text; });
    const spoken = this.#options.series.map((name, i) => `${name} ${texts[i]}`).join(", ");
    this.#svg.setAttribute("aria-label", `${this.#options.title}, ${this.#options.unit}: ${spoken}`);

    this.#marker.classList.toggle("on", isPointed);
    const x = kLeft + ((this.#svg.clientWidth - kLeft) * (slot + 0.5)) / slots;
    this.#marker.setAttribute("d", `M${x} ${kTop}V${kHeight - kBottom}`);
  }
}

function barsPath(values, below, x, y) {
  let path = "";
  values.forEach((value, j) => {
    if (!value) return;
    const width = x(j + 1) - x(j);
    const gap = width > 3 ? 1 : 0;
    path += `M${x(j)} ${y(below[j])}V${y(below[j] + value)}h${width - gap}V${y(below[j])}z`;
  });
  return path;
}

// A value that is missing interrupts the line.
function linePath(values, below, x, y) {
  let path = "";
  let isOpen = false;
  values.forEach((value, j) => {
    // Twice: a value between two gaps is a short line.
    if (value !== null) path += `${isOpen ? "L" : "M"}${x(j)} ${y(value)}L${x(j + 1)} ${y(value)}`;
    isOpen = value !== null;
  });
  return path;
}
