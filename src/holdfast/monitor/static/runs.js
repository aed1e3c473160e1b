// Runs: counts by status, a filter that lives in the address, and a table that doesn't move under the pointer.
import { html, useEffect, useRef, useState } from "./html.js";
import { get, now, runPage, tick } from "./api.js";
import { BulkBar } from "./bulk.js";
import { OverTime } from "./chart.js";
import { stringify } from "./exact.js";
import { addressOf, FilterBox } from "./filter_box.js";
import { cut, length, spoken, statusesOf, toggleStatus } from "./format.js";
import { useLive } from "./live.js";
import { newerAddress, olderAddress, Pager } from "./pager.js";
import { Empty, Loading, Moment, RunLink, State, STATES, Trouble } from "./parts.js";
import { go, query } from "./router.js";
import { SavedViews } from "./saved.js";

const SHOWN = ["RUNNING", "WAITING", "PENDING", "RETRY", "PAUSED", "STUCK", "FAILURE", "SUCCESS", "CANCELLED"];
const LIMIT = 50;

/** @param {Record<string, string | null>} changes */
const address = (changes) => addressOf("workflows/runs", changes);

/** @param {{filter: string, version: string}} props */
function Counts({ filter, version }) {
  const [counts, setCounts] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let over = false;
    get("counts", { q: filter }).then((found) => !over && setCounts(found)).catch(() => {});
    return () => { over = true; };
  }, [filter, version]);
  const chosen = statusesOf(filter);
  return html`<div class="counts" role="group" aria-label="Runs by status">
    ${SHOWN.map((status) => {
      const n = counts?.counts[status] ?? 0;
      const text = counts === null ? "·" : n.toLocaleString("en") + (counts.more.includes(status) ? "+" : "");
      return html`<a class=${`count ${STATES[status].tone} ${n ? "" : "none"}`} aria-current=${chosen.includes(status) ? "true" : undefined}
        href=${address({ q: toggleStatus(filter, status), after: null })}>
        <b>${text}</b><${State} state=${status} /></a>`;
    })}
  </div>`;
}

export function Runs() {
  const filter = query.value.get("q") ?? "";
  const after = query.value.get("after");
  const asked = { q: filter, after, limit: LIMIT };
  const { data, error } = useLive("runs", asked, { what: "runs", ...asked });
  const [shown, setShown] = useState(/** @type {any[]} */ ([]));
  const [fresh, setFresh] = useState(/** @type {any[] | null} */ (null));
  const [at, setShownAt] = useState(-1);
  // Keys come faster than the page is drawn, and than what listens to them is changed.
  const place = useRef(-1);
  /** @param {number} to */
  function setAt(to) {
    place.current = to;
    setShownAt(to);
  }
  const over = useRef(false);
  const [picked, setPicked] = useState(/** @type {Set<string>} */ (new Set()));
  const key = `${filter}|${after}`;
  const last = useRef("");

  useEffect(() => {
    if (!data) return;
    const before = new Set(shown.map((run) => run.id));
    const added = data.runs.filter((/** @type {any} */ run) => !before.has(run.id));
    const stays = last.current === key && (over.current || at >= 0 || scrollY > 80);
    last.current = key;
    if (stays && added.length) {
      const found = new Map(data.runs.map((/** @type {any} */ run) => [run.id, run]));
      setShown(shown.map((run) => found.get(run.id) ?? run));
      setFresh(data.runs);
    } else {
      setShown(data.runs);
      setFresh(null);
    }
  }, [data]);
  useEffect(() => { setAt(-1); setPicked(new Set()); }, [key]);
  /** @param {string} id */
  function pick(id) {
    setPicked((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  }

  const rows = last.current === key ? shown : data?.runs ?? [];
  const listed = useRef(rows);
  listed.current = rows;
  const next = useRef(/** @type {number | null} */ (null));
  next.current = data?.after ?? null;
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    function press(event) {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (/** @type {HTMLElement} */ (event.target).closest("input, textarea, select")) return;
      if (event.key === "j" || event.key === "k") {
        const to = Math.min(Math.max(place.current + (event.key === "j" ? 1 : -1), 0), listed.current.length - 1);
        setAt(to);
        const row = /** @type {HTMLElement | null} */ (document.querySelectorAll("tbody tr")[to]);
        row?.scrollIntoView({ block: "nearest" });
        row?.querySelector("a")?.focus({ preventScroll: true });
      } else if (event.key === "x" && listed.current[place.current]) {
        pick(listed.current[place.current].id);
      } else if (event.key === "n" && next.current) {
        go(olderAddress("workflows/runs", next.current));
      } else if (event.key === "p" && newerAddress("workflows/runs")) {
        go(newerAddress("workflows/runs"));
      }
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const hasData = rows.some((/** @type {any} */ run) => Object.keys(run.data).length);
  const isNew = fresh ? fresh.filter((run) => !shown.some((each) => each.id === run.id)).length : 0;
  return html`
    <header class="head"><h1>Runs</h1><span class="spacer"></span><${SavedViews} filter=${filter} /></header>
    <${FilterBox} page="workflows/runs" filter=${filter} placeholder="status:failed workflow:order* data.customer=42 started:<1h" />
    <${OverTime} filter=${filter} version=${data?.version ?? ""} />
    <${Counts} filter=${filter} version=${data?.version ?? ""} />
    <${Trouble} error=${error} />
    <${BulkBar} filter=${filter} picked=${picked} some=${rows.length > 0} clear=${() => setPicked(new Set())} />
    <div class="news" aria-live="polite">${isNew > 0 && html`<button onClick=${() => { setShown(fresh ?? []); setFresh(null); setAt(-1); scrollTo({ top: 0 }); }}>
      ↑ ${isNew} new ${isNew === 1 ? "run" : "runs"}</button>`}</div>
    ${!data && !error ? html`<${Loading} rows=${10} />`
    : rows.length === 0 && !error ? html`<${Empty} title=${after ? "None on this page" : filter ? "No run fits this filter" : "No runs yet"}>
        ${after ? "There are none older than this." : filter ? "Take a term out, or clear it." : html`Start one: <code>holdfast -A module start NAME</code>, or <code>.start(...)</code> in your program.`}<//>`
    : rows.length > 0 && html`
      <div class="card" onPointerEnter=${() => { over.current = true; }} onPointerLeave=${() => { over.current = false; }}>
        <table class="runs">
          <thead><tr><th scope="col" class="pick"><input type="checkbox" aria-label="Choose all on this page" checked=${rows.length > 0 && rows.every((/** @type {any} */ run) => picked.has(run.id))} onChange=${(/** @type {any} */ e) => setPicked(new Set(e.target.checked ? rows.map((/** @type {any} */ run) => run.id) : []))} /></th><th scope="col">State</th><th scope="col">Workflow</th><th scope="col">Run</th>${hasData && html`<th scope="col">Data</th>`}<th scope="col" class="wide">What it waits for</th><th scope="col">Started</th><th scope="col" class="right">Took</th></tr></thead>
          <tbody>${rows.map((/** @type {any} */ run, /** @type {number} */ i) => html`<${Row} key=${run.id} run=${run} chosen=${i === at} picked=${picked.has(run.id)} pick=${() => pick(run.id)} hasData=${hasData} />`)}</tbody>
        </table>
      </div>
`}
    <${Pager} page="workflows/runs" next=${data?.after} />`;
}

/** What a run has published, shortly. @param {Record<string, unknown>} data */
function dataText(data) {
  return Object.entries(data).map(([key, value]) => `${key}=${typeof value === "string" ? value : stringify(value)}`).join("  ");
}

/** @param {{run: any, chosen: boolean, picked: boolean, pick: () => void, hasData: boolean}} props */
function Row({ run, chosen, picked, pick, hasData }) {
  const ended = run.finished_at !== null;
  if (!ended) tick.value;
  const seconds = run.started_at === null ? null : ended ? run.seconds : (now() - Date.parse(run.started_at)) / 1000;
  const href = runPage(run.id);
  /** @param {any} event */
  function open(event) {
    if (event.target.closest("a, .pick") || getSelection()?.toString()) return;
    if (event.ctrlKey || event.metaKey) window.open(href);
    else go(href);
  }
  return html`<tr class=${`${chosen ? "chosen" : ""} ${picked ? "picked" : ""}`} onClick=${open}>
    <td class="pick"><input type="checkbox" aria-label=${`Choose ${run.id}`} checked=${picked} onChange=${pick} /></td>
    <td data-label="State"><${State} state=${run.status} /></td>
    <td data-label="Workflow" class="strong">${run.workflow}${run.attempt > 1 && html` <span class="tag">attempt ${run.attempt}</span>`}</td>
    <td data-label="Run"><${RunLink} id=${run.id} /></td>
    ${hasData && html`<td data-label="Data" class="soft mono data" title=${dataText(run.data)}>${cut(dataText(run.data), 60) || html`<span class="faint none">–</span>`}</td>`}
    <td data-label="Waits for" class="wide soft">${cut(spoken(run.marked, now()), 140) || html`<span class="faint none">–</span>`}</td>
    <td data-label="Started" class="soft nowrap"><${Moment} at=${run.created_at} /></td>
    <td data-label="Took" class="right num nowrap">${length(seconds) || "–"}</td>
  </tr>`;
}
