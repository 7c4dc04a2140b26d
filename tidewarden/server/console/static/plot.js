/**
 * Plots of figures over time, drawn by uPlot, which is loaded with the first of them.
 *
 * A plot is an element `<tw-plot>`: given another `spec` it shows other figures.
 */

import { h } from "./dom.js";
import { BRIEF_STEPS, UNITS, brief, clockTime, inUtc, zoneName } from "./format.js";

const HEIGHT = 150;
const COLORS = 6;
const dark = matchMedia("(prefers-color-scheme: dark)");
let library = null;

/**
 * The library as it is published, minified: a classic script, which makes a global. Where it did
 * not come (null), the next figures ask for it again.
 */
const load = () => (library ??= new Promise((resolve) => {
  const script = document.createElement("script");
  script.src = new URL("./vendor/uPlot.iife.min.js", import.meta.url).href;
  script.onload = () => resolve(window.uPlot);
  script.onerror = () => {
    library = null;
    script.remove();
    resolve(null);
  };
  document.head.append(script);
}));

/**
 * Makes a plot with its title and its legend, which has the newest figures in it.
 * @param {object} spec
 * @param {string} spec.title
 * @param {string} [spec.unit] a key of UNITS
 * @param {number} spec.from_ms time of the first figure
 * @param {number} spec.step_ms from one figure to the next
 * @param {{label: string, values: (number|null)[]}[]} spec.series
 * @param {boolean} [spec.bars] counts of a step each, instead of lines
 */
export function plot(spec) {
  const series = spec.series.filter((one) => one.values?.length);
  const form = UNITS[spec.unit ?? ""];
  const legend = series.map((one, index) =>
    h(
      "li",
      {},
      h("span", { class: `swatch c${index % COLORS}`, "aria-hidden": "true" }),
      `${one.label} `,
      spec.bars ? null : h("b", {}, written(last(one.values), form)),
    ),
  );
  const title = h("figcaption", {}, h("span", { class: "title" }, spec.title),
    h("ul", { class: "legend" }, legend));
  const given = { ...spec, series };
  const picture = series.some((one) => one.values.some((value) => value !== null))
    ? h("tw-plot", { spec: given, role: "img", "aria-label": inWords(given, form) })
    : h("p", { class: "quiet" }, "No figures yet.");
  return h("figure", { class: "plot", "data-key": `plot ${spec.title}` }, title, picture);
}

const written = (value, form) => (value === null || value === undefined ? "–" : form(value));

function last(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return null;
}

function inWords({ title, series, from_ms, step_ms }, form) {
  const longest = Math.max(...series.map((one) => one.values.length));
  const told = series.map(({ label, values }) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return `${label}: none`;
    const [least, most] = [Math.min(...known), Math.max(...known)];
    return `${label}: ${form(least)} to ${form(most)}, last ${form(known.at(-1))}`;
  });
  const to = clockTime(from_ms + longest * step_ms);
  return `${title}, ${clockTime(from_ms)} to ${to} ${zoneName()}. ${told.join("; ")}.`;
}

class TwPlot extends HTMLElement {
  #spec = null;
  #chart = null;
  #shape = "";
  #size = new ResizeObserver(() => this.#draw());
  #scheme = () => {
    this.#shape = "";
    this.#draw();
  };

  set spec(spec) {
    this.#spec = spec;
    if (this.isConnected) this.#draw();
  }

  get spec() {
    return this.#spec;
  }

  connectedCallback() {
    this.#size.observe(this);
    dark.addEventListener("change", this.#scheme);
  }

  disconnectedCallback() {
    this.#size.disconnect();
    dark.removeEventListener("change", this.#scheme);
    this.#chart?.destroy();
    this.#chart = null;
  }

  async #draw() {
    const uPlot = await load();
    const width = this.clientWidth;
    if (!uPlot || !this.isConnected || !this.#spec || !width) return;
    const data = dataOf(this.#spec);
    const { title, unit, bars, series } = this.#spec;
    const shape = JSON.stringify([title, unit, bars, series.map((one) => one.label), inUtc()]);
    if (this.#chart && shape === this.#shape) {
      if (this.#chart.width !== width) this.#chart.setSize({ width, height: HEIGHT });
      this.#chart.setData(data);
      return;
    }
    this.#shape = shape;
    this.#chart?.destroy();
    this.#chart = new uPlot(optionsOf(uPlot, this.#spec, width, this), data, this);
  }
}

function dataOf({ from_ms, step_ms, series, bars }) {
  const length = Math.max(...series.map((one) => one.values.length));
  const at_s = Array.from({ length }, (_, index) => (from_ms + index * step_ms) / 1000);
  const drawn = series.map((one) => one.values);
  // Bars stand on each other: each is drawn in front of the one that ends above it.
  for (let at = drawn.length - 2; bars && at >= 0; at -= 1) {
    drawn[at] = drawn[at].map((value, index) => (value ?? 0) + (drawn[at + 1][index] ?? 0));
  }
  return [at_s, ...drawn];
}

function optionsOf(uPlot, spec, width, element) {
  const style = getComputedStyle(element);
  const color = (name) => style.getPropertyValue(name).trim();
  const form = UNITS[spec.unit ?? ""];
  const isTime = spec.unit === "ms";
  const axis = {
    stroke: color("--quiet"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    padding: [12, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "time" } },
    tzDate: (at_s) => (inUtc() ? uPlot.tzDate(new Date(at_s * 1000), "Etc/UTC")
      : new Date(at_s * 1000)),
    // A rate of nothing is a line at the bottom, not in the middle.
    scales: {
      y: { range: (_, least, most) => [Math.min(0, least), most > 0 ? most * 1.1 : 1] },
      ...(spec.bars ? { x: { range: (_, from_s, to_s) =>
        [from_s - spec.step_ms / 2000, to_s + spec.step_ms / 2000] } } : {}),
    },
    axes: [
      { ...axis, space: 70, size: 28, values: times },
      { ...axis, size: 62, space: 30, ...(isTime ? { incrs: BRIEF_STEPS } : {}),
        values: (_, values) => values.map(isTime ? brief : form) },
    ],
    series: [{}, ...spec.series.map((one, index) => seriesOf(uPlot, spec, one, index, color))],
    plugins: [readout(element, form)],
  };
}

const times = (_, at_s) => at_s.map((one) => clockTime(one * 1000).slice(-8).slice(0, 5));

function seriesOf(uPlot, spec, one, index, color) {
  const stroke = color(`--c${index % COLORS}`);
  return {
    label: one.label,
    stroke,
    width: 1.5,
    points: { show: false },
    ...(spec.bars ? { fill: stroke, paths: uPlot.paths.bars({ size: [0.8, 40] }) } : {}),
  };
}

/** Says beside the plot what the figures were at the time under the pointer. */
function readout(element, form) {
  const place = h("p", { class: "readout", "aria-hidden": "true" });
  const tellAt = (chart) => {
    const at = chart.cursor.idx;
    place.hidden = at === null || at === undefined || chart.cursor.left < 0;
    if (place.hidden) return;
    const told = element.spec.series.map((one) => `${one.label} ${written(one.values[at], form)}`);
    place.textContent = `${clockTime(chart.data[0][at] * 1000)} · ${told.join(" · ")}`;
  };
  return {
    hooks: {
      init: (chart) => {
        place.hidden = true;
        chart.root.append(place);
      },
      setCursor: tellAt,
    },
  };
}

customElements.define("tw-plot", TwPlot);
