// The waterfall: a row for each step, child, hook and sleep; waiting for a worker, executing and retries told apart.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { get, link, now, tick } from "./api.js";
import { cut, length } from "./format.js";
import { countsText, idleOf, rowsOf, scaleOf, ticksOf } from "./layout.js";
import { State, Trouble } from "./parts.js";

/** @typedef {import("./layout.js").Lane} Lane */
/** @typedef {import("./layout.js").Span} Span */

const PAGE = 200;
const MORE = 500;
const REST = "rest";
/** @type {Record<string, string>} */
const WORDS = {
  queued: "queued", delayed: "delayed start", running: "running", executing: "executing", "retry wait": "waits for its retry", paused: "paused",
  stuck: "stuck", reused: "kept from an earlier attempt", group: "group", child: "child run", hook: "waits for a hook", event: "waits for an event", sleep: "sleeps", timer: "timeout",
};
const LEGEND = ["queued", "executing", "retry wait", "sleep", "hook", "child", "reused"];

/** @param {Span} span */
function toneOf(span) {
  if (span.outcome === "FAILURE" || span.outcome === "LOST") return "bad";
  if (span.outcome === "RETRY") return "warn";
  if (span.outcome === "CANCELLED") return "calm";
  if (span.end === null && (span.kind === "executing" || span.kind === "child")) return "busy";
  return "";
}

/** @param {{run: any, chosen: string, choose: (cmd: string) => void}} props */
export function Waterfall({ run, chosen, choose }) {
  const [opened, setOpened] = useState(/** @type {Set<string>} */ (new Set()));
  const [shown, setShown] = useState(PAGE);
  const [more, setMore] = useState(/** @type {Map<string, Lane[]>} */ (new Map()));
  const [error, setError] = useState(/** @type {any} */ (null));
  const { start } = run.timeline;
  const lanes = useMemo(() => [...run.timeline.lanes, ...(more.get(REST) ?? [])], [run.timeline, more]);
  const ended = run.finished_at !== null;
  if (!ended) tick.value;
  const end = ended ? run.timeline.end : Math.max(run.timeline.end, now() * 1000);
  const [fold, setFold] = useState(true);
  const [zoom, setZoom] = useState(/** @type {[number, number] | null} */ (null));
  const [brush, setBrush] = useState(/** @type {[number, number] | null} */ (null));
  const axis = useRef(/** @type {any} */ (null));
  const idle = useMemo(() => idleOf(lanes, start, end), [lanes, Math.round((end - start) / 1e6)]);
  const scale = scaleOf(lanes, start, end, fold, zoom);
  const rows = rowsOf(lanes, opened, more);
  const left = run.timeline.left_out - (more.get(REST)?.length ?? 0);
  const [from, to] = zoom ?? [start, end];
  const ticks = fold && idle.length && !zoom ? [] : ticksOf(to - from, innerWidth < 760 ? 3 : 6);
  const kinds = new Set(lanes.flatMap((/** @type {Lane} */ lane) => (lane.kind === "run" ? [] : lane.spans.map((span) => span.kind))));
  const outcomes = new Set(lanes.flatMap((/** @type {Lane} */ lane) => lane.spans.map((span) => span.outcome)));

  /** Lanes that were left out, from a place on; they are drawn under `key`. @param {string} key @param {number} at @param {number} [limit] */
  async function load(key, at, limit = MORE) {
    try {
      const found = await get("run/lanes", { id: run.id, at, limit });
      setMore((old) => new Map(old).set(key, [...(limit === MORE ? old.get(key) ?? [] : []), ...found.lanes]));
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  }
  // What was asked for is asked for again when the run has gone on.
  useEffect(() => {
    if (run.finished_at !== null || run.imported) return;
    for (const [key, known] of more) {
      const lane = run.timeline.lanes.find((/** @type {Lane} */ each) => each.cmd === key);
      const at = key === REST ? run.timeline.after : lane && lane.at + lane.members.length;
      if (typeof at === "number") load(key, at, known.length);
    }
  }, [run.version]);

  /** @param {string} id */
  function toggle(id) {
    const next = new Set(opened);
    if (!next.delete(id)) next.add(id);
    setOpened(next);
  }

  /** Where on the axis a pointer is, between 0 and 1. @param {PointerEvent} event */
  function at(event) {
    const box = axis.current.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  }
  /** @param {PointerEvent} event */
  function grip(event) {
    if (event.button !== 0) return;
    axis.current.setPointerCapture(event.pointerId);
    setBrush([at(event), at(event)]);
  }
  function letGo() {
    if (brush && Math.abs(brush[1] - brush[0]) > 0.01) {
      const [a, b] = [Math.min(...brush), Math.max(...brush)].map((x) => scale.time(x));
      setZoom([a, Math.max(a + 1000, b)]);
    }
    setBrush(null);
  }
  /** Half or twice as much of the time. @param {number} factor */
  function resize(factor) {
    const middle = (from + to) / 2;
    const half = Math.max(500, ((to - from) * factor) / 2);
    const next = /** @type {[number, number]} */ ([Math.max(start, middle - half), Math.min(end, middle + half)]);
    setZoom(next[0] <= start && next[1] >= end ? null : next);
  }

  return html`<div class="waterfall card">
    <div class="legend">
      ${LEGEND.filter((kind) => kinds.has(kind)).map((kind) => html`<span><i class=${`bar ${kind.replace(" ", "-")}`}></i>${WORDS[kind]}</span>`)}
      ${outcomes.has("RETRY") && html`<span><i class="bar warn"></i>failed, tried again</span>`}
      ${(outcomes.has("FAILURE") || outcomes.has("LOST")) && html`<span><i class="bar bad"></i>failed</span>`}
      <span class="spacer"></span>
      ${zoom && html`<button class="plain small" onClick=${() => setZoom(null)}>All of the time</button>`}
      <button class="plain small" aria-label="Less of the time" title="Zoom in; or drag over the axis" onClick=${() => resize(0.5)}>+</button>
      <button class="plain small" aria-label="More of the time" title="Zoom out" disabled=${!zoom} onClick=${() => resize(2)}>−</button>
      ${idle.length > 0 && !zoom && html`<button class="plain small" aria-pressed=${fold} onClick=${() => setFold(!fold)}>${fold ? "Show idle time" : "Fold idle time"}</button>`}
    </div>
    <div class="axis" aria-hidden="true"><div></div><div class="track" ref=${axis} title="Drag to look at a part" onPointerDown=${grip} onPointerMove=${(/** @type {any} */ e) => brush && setBrush([brush[0], at(e)])} onPointerUp=${letGo} onDblClick=${() => setZoom(null)}>
      ${brush && html`<i class="brush" style=${{ left: `${Math.min(...brush) * 100}%`, width: `${Math.abs(brush[1] - brush[0]) * 100}%` }}></i>`}
      ${ticks.map((t) => html`<span class="tick" style=${{ left: `${scale.place(from + t) * 100}%` }}>${from - start + t === 0 ? "0" : length((from - start + t) / 1e6)}</span>`)}
      ${scale.breaks.map((each) => html`<span class="break-label" style=${{ left: `${((each.from + each.to) / 2) * 100}%` }}>${length(each.us / 1e6)}</span>`)}
    </div></div>
    <ol class="lanes">
      ${rows.slice(0, shown).map(({ lane, count, left }) => (left
        ? html`<li key=${`${lane.cmd} left`} class="lane left">${run.imported ? html`<span class="faint">${left.toLocaleString("en")} more</span>` : html`<button class="plain small" onClick=${() => { setShown(shown + MORE); load(lane.cmd, lane.at + count - left); }}>Show ${Math.min(left, MORE).toLocaleString("en")} more of ${left.toLocaleString("en")}</button>`}</li>`
        : html`<${LaneRow} key=${lane.cmd + lane.kind} lane=${lane} count=${count} scale=${scale} end=${end} ticks=${ticks} start=${from} until=${to}
        chosen=${chosen !== "" && chosen === lane.cmd} open=${opened.has(lane.cmd)} press=${() => (count ? toggle(lane.cmd) : choose(lane.cmd))} />`))}
    </ol>
    <${Trouble} error=${error} />
    ${rows.length > shown && html`<button class="more" onClick=${() => setShown(shown + 5 * PAGE)}>Show ${Math.min(rows.length - shown, 5 * PAGE).toLocaleString("en")} more of ${(rows.length - shown + left).toLocaleString("en")}</button>`}
    ${rows.length <= shown && left > 0 && (run.imported ? html`<p class="faint pad">${left.toLocaleString("en")} more are not drawn; the events have all of them.</p>` : html`<button class="more" onClick=${() => { setShown(shown + MORE); load(REST, run.timeline.after + (more.get(REST)?.length ?? 0)); }}>Show ${Math.min(left, MORE).toLocaleString("en")} more of ${left.toLocaleString("en")}</button>`)}
  </div>`;
}

/** @param {{lane: Lane, count: number, scale: any, start: number, until: number, end: number, ticks: number[], chosen: boolean, open: boolean, press: () => void}} props */
function LaneRow({ lane, count, scale, start, until: last, end, ticks, chosen, open, press }) {
  const attempts = count ? 0 : Math.max(0, ...lane.spans.map((span) => span.attempt));
  const { spans } = lane;
  const first = spans.reduce((least, span) => Math.min(least, span.start), Infinity);
  const until = spans.reduce((most, span) => Math.max(most, span.end ?? end), -Infinity);
  const kept = spans.length > 0 && spans.every((span) => span.kind === "reused");
  const took = spans.length && !kept ? length((until - first) / 1e6) : "";
  const name = count ? `${lane.name} × ${count.toLocaleString("en")}` : lane.key && lane.kind !== "hook" ? lane.key : lane.name;
  const state = count ? countsText(lane.states) : lane.state;
  const said = [attempts > 1 ? `${name} ×${attempts}` : name, count ? state : lane.kind === "step" ? lane.state.toLowerCase() : lane.kind, kept && "kept", took].filter(Boolean).join(", ");
  return html`<li class=${`lane ${lane.kind} ${chosen ? "chosen" : ""}`}>
    <button class="name" onClick=${press} aria-label=${said} aria-expanded=${count ? open : undefined} disabled=${!count && lane.kind !== "step" && lane.kind !== "child"}>
      ${count ? html`<span class="fold" aria-hidden="true">${open ? "▾" : "▸"}</span>`
      : lane.kind === "step" || lane.kind === "child" || lane.kind === "run" ? html`<${State} state=${lane.state} quiet />`
      : html`<span class=${`kind ${lane.kind}`} aria-hidden="true"></span>`}
      <span class="label">${lane.undoes ? html`<span class="undo" title="compensation">↩ </span>` : ""}${cut(name, 60)}${count ? html`<span class="faint"> ${state}</span>` : ""}</span>
      ${attempts > 1 && html`<span class="tag">×${attempts}</span>`}${kept && html`<span class="tag" title=${WORDS.reused}>kept</span>`}
    </button>
    <div class="track" onClick=${() => (count > 0 || lane.kind === "step" || lane.kind === "child") && press()}>
      ${ticks.map((t) => html`<i class="line" style=${{ left: `${scale.place(start + t) * 100}%` }}></i>`)}
      ${scale.breaks.map((/** @type {any} */ each) => html`<i class="break" style=${{ left: `${each.from * 100}%`, width: `${(each.to - each.from) * 100}%` }}></i>`)}
      ${spans.filter((span) => (span.end ?? end) >= start && span.start <= last).slice(0, 300).map((span) => {
        const left = scale.place(span.start);
        const width = scale.place(span.end ?? end) - left;
        const words = span.kind === "reused" ? WORDS.reused : `${WORDS[span.kind] ?? span.kind}${span.attempt > 1 ? `, attempt ${span.attempt}` : ""}: ${length(((span.end ?? end) - span.start) / 1e6)}${span.end === null ? " so far" : ""}${span.worker ? ` on ${span.worker}` : ""}${span.outcome ? `, ${span.outcome.toLowerCase()}` : ""}`;
        return html`<i class=${`bar ${span.kind.replace(" ", "-")} ${toneOf(span)} ${span.end === null ? "open" : ""}`} title=${words} style=${{ left: `${left * 100}%`, width: `${width * 100}%` }}></i>`;
      })}
      ${took && until >= start && until <= last && html`<span class="took" style=${{ left: `${scale.place(until) * 100}%` }}>${took}</span>`}
    </div>
  </li>`;
}
