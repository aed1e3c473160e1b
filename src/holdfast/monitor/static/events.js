// The events of a run: however many there are, only those that are to be seen are on the page.
import { html, useEffect, useRef, useState } from "./html.js";
import { get, runPage } from "./api.js";
import { stringify } from "./exact.js";
import { callText, cut, precise } from "./format.js";
import { Json, Loading, Trouble } from "./parts.js";
import { go, query } from "./router.js";

const ROW = 34;
const PAGE = 250;
const AROUND = 12;

/** @param {string} kind */
export function toneOf(kind) {
  if (kind.endsWith("Completed")) return "good";
  if (kind.endsWith("Failed") || kind.endsWith("Stuck")) return "bad";
  if (kind.endsWith("Retrying") || kind.endsWith("Lost")) return "warn";
  return kind.endsWith("Started") || kind.endsWith("Resumed") ? "busy" : "calm";
}

/** @param {any} event */
export function gist(event) {
  const d = event.detail;
  if (d.error?.message) return `${d.error.type}: ${d.error.message}`;
  if ("result" in d && d.result !== null) return `→ ${stringify(d.result)}`;
  if (event.kind === "DataSet") return `= ${stringify(d.args)}`;
  if (d.reason) return String(d.reason);
  if (d.payload !== undefined && d.payload !== null) return stringify(d.payload);
  return callText(d.args ?? d.input);
}

/** @param {{run: any, fork: (at: number, replace?: number) => void, mayFork: boolean}} props */
export function Events({ run, fork, mayFork }) {
  const total = run.events;
  const first = run.first_event ?? 1;
  const box = useRef(/** @type {any} */ (null));
  const pages = useRef(/** @type {Map<number, any[] | null>} */ (new Map()));
  const [, redraw] = useState(0);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  const [error, setError] = useState(/** @type {any} */ (null));
  const at = Number(query.value.get("event") ?? 0);
  /** @param {number} seq */
  const choose = (seq) => (run.imported ? setLocal(seq) : go(runPage(run.id, seq ? { view: "events", event: String(seq) } : { view: "events" })));
  const [local, setLocal] = useState(0);
  const chosen = run.imported ? local : at;

  const from = Math.max(0, Math.floor(top / ROW) - AROUND);
  const until = Math.min(total, Math.ceil((top + tall) / ROW) + AROUND);

  useEffect(() => {
    // What was read stays; the last page may have grown.
    pages.current.delete(Math.floor(Math.max(0, total - 1) / PAGE));
    pages.current.delete(Math.floor(total / PAGE));
    redraw((n) => n + 1);
  }, [run.version]);
  useEffect(() => {
    if (run.imported) return;
    for (let page = Math.floor(from / PAGE); page <= Math.floor(Math.max(0, until - 1) / PAGE); page++) {
      if (pages.current.has(page)) continue;
      pages.current.set(page, null);
      get("run/events", { id: run.id, after: page * PAGE, limit: PAGE }).then(
        (found) => { pages.current.set(page, found.events); redraw((n) => n + 1); },
        (failure) => { pages.current.delete(page); setError(failure); });
    }
  }, [from, until, run.version, run.id]);
  useEffect(() => {
    const seen = new ResizeObserver(() => setTall(box.current?.clientHeight ?? 600));
    if (box.current) seen.observe(box.current);
    if (chosen) show(chosen);
    return () => seen.disconnect();
  }, []);

  /** @param {number} seq */
  function show(seq) {
    const place = (seq - first) * ROW;
    if (box.current && (place < box.current.scrollTop || place > box.current.scrollTop + box.current.clientHeight - 2 * ROW)) box.current.scrollTop = place - tall / 3;
  }
  /** @param {number} seq */
  function step(seq) {
    const to = Math.min(Math.max(first, seq), first + total - 1);
    choose(to);
    show(to);
  }
  /** @param {KeyboardEvent} event */
  function key(event) {
    const by = /** @type {Record<string, number>} */ ({ ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 20, PageUp: -20 })[event.key];
    if (by === undefined) return;
    event.preventDefault();
    step((chosen || first - by) + by);
  }
  /** @param {number} i */
  const eventAt = (i) => (run.imported ? run.all_events[i] : pages.current.get(Math.floor(i / PAGE))?.[i % PAGE]);

  const rows = [];
  for (let i = from; i < until; i++) rows.push({ i, event: eventAt(i) });
  return html`<${Trouble} error=${error} />
    <div class=${`split ${chosen ? "on" : ""}`}>
    <div class="card events-card">
      <div class="event-row event-head" aria-hidden="true"><span class="right">#</span><span>At</span><span>Event</span><span>Name</span><span>What</span></div>
      <div class="event-list" ref=${box} tabindex="0" role="listbox" aria-label=${`${total} events`} aria-activedescendant=${chosen ? `event-${chosen}` : undefined} onScroll=${(/** @type {any} */ e) => setTop(e.target.scrollTop)} onKeyDown=${key}>
        <div class="event-space" style=${{ height: `${total * ROW}px` }}>
          ${rows.map(({ i, event }) => html`<div key=${i} id=${event ? `event-${event.seq}` : undefined} role="option" aria-selected=${Boolean(event) && event.seq === chosen} aria-setsize=${total} aria-posinset=${i + 1} class=${`event-row ${event && event.seq === chosen ? "chosen" : ""}`} style=${{ top: `${i * ROW}px` }}
            onClick=${() => event && choose(event.seq === chosen ? 0 : event.seq)}>
            ${event ? html`<span class="right num faint">${event.seq}</span><span class="soft num nowrap">${precise(event.at)}</span>
              <span class="nowrap"><i class=${`dot ${toneOf(event.kind)}`}></i>${event.kind}${event.attempt > 1 ? html` <span class="tag">attempt ${event.attempt}</span>` : ""}</span>
              <span class="strong cut-line">${event.name ?? ""}</span><span class="soft mono cut-line">${cut(gist(event), 160)}${event.detail.by ? html` <span class="tag">by ${event.detail.by}</span>` : ""}</span>`
            : html`<span class="right num faint">${first + i}</span><span class="faint">…</span>`}
          </div>`)}
        </div>
      </div>
    </div>
    ${chosen > 0 && html`<${EventPanel} key=${chosen} run=${run} seq=${chosen} choose=${step} close=${() => choose(0)} fork=${fork} mayFork=${mayFork} />`}
    </div>`;
}

/** @param {{run: any, seq: number, choose: (seq: number) => void, close: () => void, fork: (at: number, replace?: number) => void, mayFork: boolean}} props */
function EventPanel({ run, seq, choose, close, fork, mayFork }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (run.imported) {
      const event = run.all_events.find((/** @type {any} */ each) => each.seq === seq);
      const cause = run.all_events.find((/** @type {any} */ each) => each.seq === event?.cause) ?? null;
      if (event) setFound({ event, cause, followed: run.all_events.filter((/** @type {any} */ each) => each.cause === seq), more: 0 });
      return undefined;
    }
    let over = false;
    get("run/event", { id: run.id, seq }).then((answer) => !over && setFound(answer), (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [seq, run.version]);
  const event = found?.event;
  const outcome = event && ["StepCompleted", "StepFailed", "ChildCompleted", "ChildFailed"].includes(event.kind);
  return html`<aside class="panel card" aria-label=${`Event ${seq}`}>
    <header><h2>${event ? event.kind : `Event ${seq}`}</h2><span class="tag">${seq}</span><span class="spacer"></span><button class="plain small" onClick=${close} aria-label="Close">✕</button></header>
    <${Trouble} error=${error} />${!found && !error && html`<${Loading} rows=${3} />`}
    ${event && html`
      <dl class="facts narrow"><div><dt>At</dt><dd class="num">${precise(event.at)}</dd></div>${event.name && html`<div><dt>Name</dt><dd class="strong">${event.name}</dd></div>`}
        ${event.cmd && html`<div><dt>Command</dt><dd class="mono">${event.cmd}</dd></div>`}${event.detail.worker && html`<div><dt>Worker</dt><dd class="mono">${event.detail.worker}</dd></div>`}
        ${event.clock > 0 && html`<div><dt>Clock</dt><dd class="num">${event.clock}</dd></div>`}${event.detail.by && html`<div><dt>By</dt><dd>${event.detail.by}</dd></div>`}</dl>
      <h3>Caused by</h3>${found.cause ? html`<${EventLink} event=${found.cause} choose=${choose} />` : html`<p class="faint">Nothing in this run.</p>`}
      <h3>What followed</h3>${found.followed.length ? html`<div class="event-links">${found.followed.map((/** @type {any} */ each) => html`<${EventLink} key=${each.seq} event=${each} choose=${choose} />`)}</div>${found.more > 0 && html`<p class="faint">and ${found.more} more</p>`}` : html`<p class="faint">The code asked for nothing because of it.</p>`}
      ${mayFork && html`<p class="buttons-left"><button class="small" onClick=${() => fork(seq)}>Fork from here…</button>${outcome && html` <button class="small" onClick=${() => fork(seq, seq)}>Fork with another result…</button>`}</p>`}
      <h3>All of it</h3><${Json} value=${event.detail} />`}
  </aside>`;
}

/** @param {{event: any, choose: (seq: number) => void}} props */
function EventLink({ event, choose }) {
  return html`<button class="event-link" onClick=${() => choose(event.seq)}><i class=${`dot ${toneOf(event.kind)}`}></i><span class="num faint">${event.seq}</span> ${event.kind} <b>${event.name ?? ""}</b></button>`;
}
