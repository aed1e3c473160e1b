// What all workers have done: a lane for each, with as many rows as it did things at a time.
import { html, useMemo, useState } from "./html.js";
import { stepPage } from "./api.js";
import { FilterBox, addressOf } from "./filter_box.js";
import { clock, length } from "./format.js";
import { ticksOf } from "./layout.js";
import { packed, thinned } from "./lanes.js";
import { useLive } from "./live.js";
import { Empty, Loading, Trouble } from "./parts.js";
import { go, query } from "./router.js";

const RANGES = /** @type {[string, number][]} */ ([["1 min", 60], ["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400]]);
const TONES = /** @type {Record<string, string>} */ ({ FAILURE: "bad", LOST: "bad", RETRY: "warn", STARTED: "busy", CANCELLED: "calm", SUCCESS: "good" });

export function Timeline() {
  const filter = query.value.get("q") ?? "";
  const seconds = Number(query.value.get("seconds")) || 900;
  const { data, error } = useLive("timeline", { q: filter, seconds }, { what: "runs" });
  const [zoom, setZoom] = useState(/** @type {[number, number] | null} */ (null));
  const total = seconds * 1e6;
  const [from, to] = zoom ?? [0, total];
  const lanes = useMemo(() => (data?.lanes ?? []).map((/** @type {any} */ lane) => ({ ...lane, rows: packed(lane.spans, total) })), [data]);
  /** @param {number} by */
  function resize(by) {
    const middle = (from + to) / 2;
    const half = Math.min(total, Math.max(2000, (to - from) * by)) / 2;
    const next = /** @type {[number, number]} */ ([Math.max(0, middle - half), Math.min(total, middle + half)]);
    setZoom(next[0] === 0 && next[1] === total ? null : next);
  }
  /** @param {number} by */
  function shift(by) {
    const step = Math.min(Math.max((to - from) * by, -from), total - to);
    setZoom([from + step, to + step]);
  }
  /** Zooms to what was done. */
  function fit() {
    const all = (data?.lanes ?? []).flatMap((/** @type {any} */ lane) => lane.spans);
    if (!all.length) return;
    const first = Math.min(...all.map((/** @type {any} */ span) => span.start));
    const last = Math.max(...all.map((/** @type {any} */ span) => span.end ?? total));
    const room = Math.max(1000, (last - first) * 0.03);
    setZoom([Math.max(0, first - room), Math.min(total, last + room)]);
  }
  const ticks = ticksOf(to - from, innerWidth < 760 ? 3 : 8);
  const begins = data ? Date.parse(data.since) : 0;
  return html`<header class="head"><h1>Timeline</h1><p class="soft">What each worker has executed.</p><span class="spacer"></span>
      <span class="ranges" role="group" aria-label="How long back">${RANGES.map(([word, n]) => html`<a class="chip" aria-current=${n === seconds ? "true" : undefined} href=${addressOf("timeline", { seconds: String(n) })} onClick=${() => setZoom(null)}>${word}</a>`)}</span></header>
    <${FilterBox} page="timeline" filter=${filter} placeholder="workflow:order* status:failed" />
    <${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (lanes.length ? html`<div class="card waterfall occupancy">
      <div class="legend"><span><i class="bar"></i>done</span><span><i class="bar busy"></i>executing</span><span><i class="bar warn"></i>failed, tried again</span><span><i class="bar bad"></i>failed</span><span class="spacer"></span>
        ${zoom && html`<button class="plain small" onClick=${() => setZoom(null)}>All ${RANGES.find(([, n]) => n === seconds)?.[0] ?? ""}</button>`}<button class="plain small" onClick=${fit}>Fit</button>
        <button class="plain small" aria-label="Earlier" disabled=${from <= 0} onClick=${() => shift(-0.4)}>‹</button><button class="plain small" aria-label="Later" disabled=${to >= total} onClick=${() => shift(0.4)}>›</button>
        <button class="plain small" aria-label="Less of the time" onClick=${() => resize(0.5)}>+</button><button class="plain small" aria-label="More of the time" disabled=${!zoom} onClick=${() => resize(2)}>−</button></div>
      <div class="axis" aria-hidden="true"><div></div><div class="track">${ticks.filter((t) => t / (to - from) < 0.95).map((t) => html`<span class=${`tick ${t === 0 ? "first" : ""}`} style=${{ left: `${(t / (to - from)) * 100}%` }}>${clock(new Date(begins + (from + t) / 1000).toISOString())}</span>`)}</div></div>
      <ol class="lanes">${lanes.map((/** @type {any} */ lane) => html`<li key=${lane.worker} class="lane worker" style=${{ height: `${Math.max(40, lane.rows.length * 16 + 12)}px` }}>
        <div class="name"><span class=${`pulse ${lane.alive ? "" : "off"}`} aria-hidden="true"></span><span class="label"><a class="mono" href=${addressOf("invocations", { q: `worker:${lane.worker}`, seconds: null })}>${lane.worker}</a><br /><span class="faint">${lane.host ?? (lane.alive ? "" : "gone")} · ${Math.round(busyOf(lane.spans, total) * 100)} % busy</span></span></div>
        <div class="track">${ticks.map((t) => html`<i class="line" style=${{ left: `${(t / (to - from)) * 100}%` }}></i>`)}
          ${lane.rows.flatMap((/** @type {any[]} */ row, /** @type {number} */ r) => thinned(row, from, to, total, 900).map((span) => html`<a class=${`bar at-row ${TONES[span.state] ?? "good"}`} tabindex=${span.many > 1 ? -1 : 0} href=${stepPage(span.run, span.cmd)} onClick=${(/** @type {any} */ e) => { if (span.many > 1) { e.preventDefault(); setZoom([span.from, span.to]); } else if (!e.ctrlKey && !e.metaKey) { e.preventDefault(); go(stepPage(span.run, span.cmd)); } }}
            aria-label=${span.many > 1 ? `${span.many} steps` : `${span.name}, ${span.state.toLowerCase()}, ${length((span.to - span.from) / 1e6)}`} title=${span.many > 1 ? `${span.many} steps; look closer` : `${span.name} of ${span.run}${span.attempt > 1 ? `, attempt ${span.attempt}` : ""}: ${length((span.to - span.from) / 1e6)}, ${span.state.toLowerCase()}`}
            style=${{ left: `${((Math.max(span.from, from) - from) / (to - from)) * 100}%`, width: `${((Math.min(span.to, to) - Math.max(span.from, from)) / (to - from)) * 100}%`, top: `${r * 16 + 12}px` }}></a>`))}
        </div></li>`)}</ol></div>
      <p class="faint below">From the ${data.looked_at.toLocaleString("en")} newest runs of that time${data.left_out ? `; ${data.left_out.toLocaleString("en")} more steps are not drawn` : ""}.</p>`
    : html`<${Empty} title="Nothing was executed in this time">Look further back, or start a worker.<//>`)}`;
}

/** The part of a time in which at least one thing was executed. @param {any[]} spans @param {number} total */
function busyOf(spans, total) {
  let sum = 0;
  let at = 0;
  for (const span of spans) {
    const end = span.end ?? total;
    if (end <= at) continue;
    sum += end - Math.max(at, span.start);
    at = end;
  }
  return sum / total;
}
