// The live view of the engine: GET v1/engine once a second, and what has changed since the last answer.

import {getJson} from "./api.js";
import {Chart, shortNumber} from "./charts.js";

const kPollMs = 1000;
const kMaxSamples = 120;
const kMaxSteps = 200;
const kHitWindow = 30;  // samples

const kCounts = [
  ["Running", (state) => state.stats?.running],
  ["Waiting", (state) => state.stats?.waiting],
  ["Preempted", (state) => state.stats?.preempted],
  ["Finished", (state) => state.stats?.finished],
  ["Refused", (state) => state.refused],
  ["Preemptions", (state) => state.stats?.preemptions],
  ["Steps", (state) => state.stats?.steps],
  ["Prompt tokens", (state) => state.stats?.prompt_tokens],
  ["Answer tokens", (state) => state.stats?.generated_tokens],
  ["Connections", (state) => state.connections],
];

// Over the latest steps.
const kStepCharts = [
  {title: "Batch", unit: "tokens per step", series: ["answers", "prompts"], kind: "bars",
   caption: "Each bar is a step. The last token of a prompt counts as that of the answer, which it begins.",
   values: (steps) => [steps.map((step) => Math.min(step.generated, step.tokens)),
                       steps.map((step) => Math.max(step.tokens - step.generated, 0))]},
  {title: "Step time", unit: "ms", series: ["time"], kind: "bars",
   caption: "The same steps.", values: (steps) => [steps.map((step) => step.ms)]},
];

const latency = (name, percentile) => (sample) => sample.last_minute_ms?.[name]?.[percentile];
const percentiles = (name) => ["p50", "p90", "p99"].map((percentile) => latency(name, percentile));

// Over time: a value of each sample, from it, the one before it and the oldest of the window.
const kTimeCharts = [
  {title: "Sequences", unit: "now", series: ["running", "waiting", "preempted"], kind: "lines",
   caption: "Waiting sequences have not started; preempted ones gave their pages to others.",
   values: ["running", "waiting", "preempted"].map((name) => (sample) => sample.stats?.[name])},
  {title: "Throughput", unit: "tokens/s", series: ["answers", "prompts"], kind: "lines",
   caption: "Prompts count when they start, with what the prefix cache had of them.",
   values: ["generated_tokens", "prompt_tokens"].map((name) => (sample, last) => rate(sample, last, name))},
  {title: "KV pages", unit: "pages", series: ["in use", "shared", "free"], kind: "bars",
   caption: "Shared: in use by more than one sequence. Free pages may still hold a cached prefix.",
   values: [(sample) => sample.pages && sample.pages.used - (sample.pages.shared ?? 0),
            (sample) => sample.pages?.shared, (sample) => sample.pages?.free]},
  {title: "Prefix cache hits", unit: "% of prompt tokens", series: ["hit rate"], kind: "lines", most: 100,
   caption: `Prompts that started in the last ${kHitWindow} s. No line: there were none.`,
   values: [(sample, last, oldest) => hitRate(sample, oldest)]},
  {title: "TTFT", unit: "ms", series: ["p50", "p90", "p99"], kind: "lines",
   caption: "Time to first token, as the server sees it: requests of the last minute.",
   values: percentiles("time_to_first_token")},
  {title: "ITL", unit: "ms", series: ["p50", "p90", "p99"], kind: "lines",
   caption: "Inter-token latency: tokens of the last minute.", values: percentiles("inter_token_latency")},
];

// A difference of absent fields is NaN.
function numberOrNull(value) {
  return Number.isFinite(value) ? value : null;
}

function rate(sample, last, name) {
  if (!last?.stats || !sample.stats) return null;
  return Math.max(sample.stats[name] - last.stats[name], 0) / ((sample.time - last.time) / 1000);
}

function hitRate(sample, oldest) {
  const queries = sample.prefix_cache?.queries - oldest?.prefix_cache?.queries;
  return queries > 0 ? (100 * (sample.prefix_cache.hits - oldest.prefix_cache.hits)) / queries : null;
}

function age(ms) {
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s ago`;
  if (ms < 120000) return `${Math.round(ms / 1000)} s ago`;
  return `${Math.round(ms / 60000)} min ago`;
}

export class EngineView {
  #samples = [];  // answers of the server, with the time of arrival in ms; {time}: a gap
  #steps = [];
  #counts = new Map();
  #stepCharts;
  #timeCharts;
  #status = document.getElementById("engine-status");

  constructor() {
    for (const [name] of kCounts) {
      const group = document.createElement("div");
      const value = document.createElement("dd");
      const term = document.createElement("dt");
      term.textContent = name;
      value.textContent = "–";
      group.append(term, value);
      document.getElementById("counts").append(group);
      this.#counts.set(name, value);
    }
    const parent = document.getElementById("charts");
    this.#stepCharts = kStepCharts.map((options) => new Chart(parent, options));
    this.#timeCharts = kTimeCharts.map((options) => new Chart(parent, options));
    window.addEventListener("resize", () => this.draw());
  }

  // Polls while the page is visible.
  async run() {
    for (;;) {
      if (document.visibilityState === "visible") await this.#poll();
      await new Promise((resolve) => setTimeout(resolve, kPollMs));
    }
  }

  async #poll() {
    try {
      this.#add(await getJson("v1/engine"));
      this.#setStatus("");
    } catch (error) {
      this.#samples.push({time: performance.now()});
      this.#setStatus(error.message);
    }
    this.#samples = this.#samples.slice(-kMaxSamples);
    if (!document.getElementById("engine").hidden) this.draw();
  }

  #add(state) {
    const {steps = [], ...sample} = state;
    const time = performance.now();
    // The page was hidden, or the server has been started anew: the difference to the last sample means nothing.
    const last = this.#samples.at(-1);
    if (last && (time - last.time > 5 * kPollMs || sample.stats?.steps < last.stats?.steps)) {
      this.#samples.push({time});
    }
    this.#samples.push({...sample, time});
    // A step that found no work computed nothing.
    this.#steps = steps.filter((step) => step.tokens > 0).slice(-kMaxSteps);
  }

  // A status that is set again would be read aloud again.
  #setStatus(text) {
    if (this.#status.textContent !== text) this.#status.textContent = text;
  }

  draw() {
    const latest = this.#samples.at(-1);
    if (!latest) return;
    for (const [name, value] of kCounts) this.#counts.get(name).textContent = shortNumber(value(latest));
    const stepStart = this.#steps.length ? age(this.#steps[0].ms_ago) : "";
    this.#stepCharts.forEach((chart, i) => chart.update(
      {series: kStepCharts[i].values(this.#steps), slots: kMaxSteps, start: stepStart}));
    const isFull = this.#samples.length === kMaxSamples;
    const timeStart = age(isFull ? latest.time - this.#samples[0].time : kMaxSamples * kPollMs);
    this.#timeCharts.forEach((chart, i) => chart.update({
      series: kTimeCharts[i].values.map((value) => this.#samples.map((sample, j) =>
        numberOrNull(value(sample, this.#samples[j - 1], this.#oldest(j))))),
      slots: kMaxSamples,
      start: timeStart,
    }));
  }

  // The oldest sample of the window that ends with sample j, after any gap.
  #oldest(j) {
    let oldest = j;
    while (oldest > Math.max(j - kHitWindow, 0) && this.#samples[oldest - 1].prefix_cache) --oldest;
    return this.#samples[oldest];
  }
}
