// One run: its state and why, what happened over time, its events, values and family.
import { html, useEffect, useState } from "./html.js";
import { get, link, now, tick } from "./api.js";
import { ActionDialog, actionsOf, WORDS } from "./actions.js";
import { callText, cut, length, precise } from "./format.js";
import { useLive } from "./live.js";
import { Copy, ErrorBox, Json, Loading, RunLink, State, STATES, Trouble, When } from "./parts.js";
import { query } from "./router.js";
import { about } from "./shell.js";
import { Waterfall } from "./waterfall.js";

const VIEWS = [["", "Timeline"], ["events", "Events"], ["values", "Input and result"], ["family", "Family"], ["logs", "Logs"]];

/** @param {{id: string}} props */
export function Run({ id }) {
  const { data: run, error, again } = useLive("run", { id }, { what: `run:${id}` });
  const [asked, setAsked] = useState(/** @type {{name: string, at?: number} | null} */ (null));
  const [cmd, setCmd] = useState("");
  const view = query.value.get("view") ?? "";
  useEffect(() => { document.title = run ? `${STATES[run.status]?.word ?? run.status}: ${run.workflow} ${run.id}` : "Holdfast"; }, [run]);
  useEffect(() => setCmd(""), [id]);
  if (!run) return html`<${Trouble} error=${error} />${error?.status === 404 && html`<p class="pad"><a href=${link("workflows/runs")}>All runs</a></p>`}${!error && html`<${Loading} />`}`;
  const here = link(`workflows/runs/${encodeURIComponent(id)}`);
  const chosen = run.steps.find((/** @type {any} */ step) => step.cmd === cmd);
  const acts = about.value?.read_only ? [] : actionsOf(run);
  const logged = run.logs.reduce((/** @type {number} */ n, /** @type {any} */ kept) => n + kept.lines.length, 0);
  /** @type {Record<string, number>} */
  const counts = { events: run.events, logs: logged, family: run.children.length };
  return html`
    <${Trouble} error=${error} />
    <nav class="crumbs" aria-label="Where you are"><a href=${link("workflows/runs")}>Runs</a> <span aria-hidden="true">/</span> <a href=${link(`workflows/runs?q=${encodeURIComponent(`workflow:${run.workflow}`)}`)}>${run.workflow}</a></nav>
    <header class=${`run-head card ${STATES[run.status]?.tone ?? ""}`}>
      <div class="run-title">
        <h1>${run.workflow}</h1><${State} state=${run.status} big />
        <span class="spacer"></span>
        <div class="actions">${acts.map((name) => html`<button class=${name === "send" || name === "retry" || name === "resume" ? "primary" : name === "cancel" ? "danger-quiet" : ""} onClick=${() => setAsked({ name })}>${WORDS[name].button}</button>`)}</div>
      </div>
      <p class="why">${sentence(run)}${run.orders.length > 0 && html` <span class="tag">asked to ${run.orders.join(", ")}</span>`}</p>
      <dl class="facts">
        <div><dt>Run</dt><dd class="mono">${run.id} <${Copy} text=${run.id} /></dd></div>
        <div><dt>Started</dt><dd><${When} at=${run.created_at} /></dd></div>
        <div><dt>${run.finished_at ? "Took" : "So far"}</dt><dd class="num"><${Took} run=${run} /></dd></div>
        ${run.attempt > 1 && html`<div><dt>Attempt</dt><dd>${run.attempt}</dd></div>`}
        ${run.worker && html`<div><dt>Worker</dt><dd class="mono">${run.worker}</dd></div>`}
        ${run.build && html`<div><dt>Build</dt><dd class="mono">${run.build}</dd></div>`}
        ${run.parent_id && html`<div><dt>Parent</dt><dd><${RunLink} id=${run.parent_id} /></dd></div>`}
        ${run.forked_from && html`<div><dt>Fork of</dt><dd><${RunLink} id=${run.forked_from} /></dd></div>`}
      </dl>
    </header>
    <nav class="tabs" aria-label="Views of the run">${VIEWS.map(([name, word]) => html`<a href=${here + (name ? `?view=${name}` : "")} aria-current=${view === name ? "page" : undefined}>${word}${counts[name] ? html` <span class="n">${counts[name]}</span>` : ""}</a>`)}</nav>
    ${view === "" && html`
      ${run.error && html`<${ErrorBox} error=${run.error} />`}
      <div class=${`split ${chosen ? "on" : ""}`}>
        <${Waterfall} run=${run} chosen=${cmd} choose=${(/** @type {string} */ to) => setCmd(to === cmd ? "" : to)} />
        ${chosen && html`<${StepPanel} step=${chosen} close=${() => setCmd("")} />`}
      </div>`}
    ${view === "events" && html`<${Events} run=${run} fork=${(/** @type {number} */ at) => setAsked({ name: "fork", at })} mayFork=${acts.includes("fork")} />`}
    ${view === "values" && html`<${Values} run=${run} />`}
    ${view === "family" && html`<${Family} run=${run} />`}
    ${view === "logs" && html`<${Logs} logs=${run.logs} />`}
    ${asked && html`<${ActionDialog} key=${asked.name + asked.at} name=${asked.name} at=${asked.at} run=${run} close=${() => setAsked(null)} again=${again} />`}`;
}

/** @param {any} run */
function sentence(run) {
  const text = run.why.text;
  return text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "";
}

/** @param {{run: any}} props */
function Took({ run }) {
  if (!run.finished_at) tick.value;
  if (!run.started_at) return "–";
  return length(run.finished_at ? run.seconds : (now() - Date.parse(run.started_at)) / 1000);
}

/** @param {{step: any, close: () => void}} props */
function StepPanel({ step, close }) {
  return html`<aside class="panel card" aria-label=${`Step ${step.name}`}>
    <header><h2>${step.key || step.name}</h2><${State} state=${step.state} /><span class="spacer"></span><button class="plain small" onClick=${close} aria-label="Close">✕</button></header>
    <dl class="facts narrow">
      ${step.key && step.key !== step.name && html`<div><dt>Runs</dt><dd class="mono">${step.name}</dd></div>`}
      ${step.attempts > 1 && html`<div><dt>Attempts</dt><dd>${step.attempts}</dd></div>`}
      <div><dt>Started</dt><dd>${precise(step.started_at) || "–"}</dd></div>
      <div><dt>Ended</dt><dd>${precise(step.ended_at) || "–"}</dd></div>
      ${step.retry_at && html`<div><dt>Next try</dt><dd><${When} at=${step.retry_at} /></dd></div>`}
      ${step.worker && html`<div><dt>Worker</dt><dd class="mono">${step.worker}</dd></div>`}
      ${step.child_run_id && html`<div><dt>Run</dt><dd><${RunLink} id=${step.child_run_id} /></dd></div>`}
      ${step.undoes && html`<div><dt>Undoes</dt><dd class="mono">${step.undoes}</dd></div>`}
      ${step.reason && html`<div><dt>Reason</dt><dd>${step.reason}</dd></div>`}
    </dl>
    ${step.reused && html`<p class="soft">Kept from an earlier attempt; it was not done again.</p>`}
    ${step.progress && html`<p class="soft">Progress ${step.progress.done}${step.progress.total ? ` of ${step.progress.total}` : ""} ${step.progress.note ?? ""}</p>`}
    ${step.error && html`<h3>Error</h3><${ErrorBox} error=${step.error} />`}
    <h3>Called with</h3><${Json} value=${step.call} />
    ${step.state === "SUCCESS" && html`<h3>Result</h3><${Json} value=${step.result} />`}
    ${step.logs.length > 0 && html`<h3>Logs</h3><${Logs} logs=${step.logs} />`}
  </aside>`;
}

/** @param {string} kind */
function toneOf(kind) {
  if (kind.endsWith("Completed")) return "good";
  if (kind.endsWith("Failed") || kind.endsWith("Stuck")) return "bad";
  if (kind.endsWith("Retrying") || kind.endsWith("Lost")) return "warn";
  return kind.endsWith("Started") || kind.endsWith("Resumed") ? "busy" : "calm";
}

/** @param {any} event */
function gist(event) {
  const d = event.detail;
  if (d.error?.message) return `${d.error.type}: ${d.error.message}`;
  if ("result" in d && d.result !== null) return `→ ${JSON.stringify(d.result)}`;
  if (event.kind === "DataSet") return `= ${JSON.stringify(d.args)}`;
  if (d.reason) return d.reason;
  return callText(d.args ?? d.input);
}

/** @param {{run: any, fork: (at: number) => void, mayFork: boolean}} props */
function Events({ run, fork, mayFork }) {
  const [events, setEvents] = useState(/** @type {any[]} */ ([]));
  const [more, setMore] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(0);
  /** @param {any[]} known */
  async function load(known) {
    try {
      const found = await get("run/events", { id: run.id, after: known.length ? known[known.length - 1].seq : 0 });
      setEvents([...known, ...found.events]);
      setMore(found.after !== null);
    } catch (failure) {
      setError(failure);
    }
  }
  useEffect(() => { if (!more) load(events); }, [run.version]);
  return html`<${Trouble} error=${error} />
  <div class="card"><table class="events">
    <thead><tr><th scope="col" class="right">#</th><th scope="col">At</th><th scope="col">Event</th><th scope="col">Name</th><th scope="col" class="wide">What</th></tr></thead>
    <tbody>${events.map((event) => html`
      <tr key=${event.seq} class=${open === event.seq ? "chosen" : ""} onClick=${() => setOpen(open === event.seq ? 0 : event.seq)}>
        <td class="right num"><button class="plain seq" aria-expanded=${open === event.seq} aria-label=${`Event ${event.seq}`}>${event.seq}</button></td>
        <td class="soft num nowrap">${precise(event.at)}</td>
        <td><span class=${`dot ${toneOf(event.kind)}`}></span>${event.kind}${event.attempt > 1 ? html` <span class="tag">attempt ${event.attempt}</span>` : ""}</td>
        <td class="strong">${event.name ?? ""}</td>
        <td class="wide soft mono cut">${cut(gist(event), 160)}</td>
      </tr>
      ${open === event.seq && html`<tr class="detail" key=${`d${event.seq}`}><td colspan="5">
        <p class="soft">${event.cause ? html`Caused by event <button class="link" onClick=${() => setOpen(event.cause)}>${event.cause}</button>. ` : ""}${event.cmd ? html`Command <code>${event.cmd}</code>. ` : ""}
          ${mayFork && html`<button class="small" onClick=${() => fork(event.seq)}>Fork from here…</button>`}</p>
        <${Json} value=${event.detail} /></td></tr>`}`)}
    </tbody></table>
    ${more && html`<button class="more" onClick=${() => load(events)}>Show more</button>`}
  </div>`;
}

/** @param {{run: any}} props */
function Values({ run }) {
  const data = Object.entries(run.data);
  return html`<div class="values">
    <section class="card pad"><h2>Input</h2>${run.canvas && html`<p class="mono">${run.canvas}</p>`}<${Json} value=${run.input} /></section>
    <section class="card pad"><h2>Result</h2>${run.error ? html`<${ErrorBox} error=${run.error} />` : "result" in run ? html`<${Json} value=${run.result} />` : html`<p class="soft">${run.finished_at ? "It was cancelled." : "There is none yet."}</p>`}</section>
    <section class="card pad"><h2>Data</h2>${data.length ? html`<${Json} value=${run.data} />` : html`<p class="soft">The workflow has set none. <code>wf.set_data(key, value)</code> does, and runs can be filtered by it.</p>`}</section>
  </div>`;
}

/** @param {{run: any}} props */
function Family({ run }) {
  const [tree, setTree] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let over = false;
    get("run/tree", { id: run.id }).then((found) => !over && setTree(found), (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [run.version]);
  return html`<${Trouble} error=${error} /><div class="card pad">
    ${run.parent_id && html`<p class="soft">Child of <${RunLink} id=${run.parent_id} full />${run.root_id && run.root_id !== run.parent_id ? html`, in the family of <${RunLink} id=${run.root_id} full />` : ""}</p>`}
    ${tree ? html`<ul class="tree root"><${Branch} node=${tree} top=${run.id} /></ul>` : !error && html`<${Loading} rows=${4} />`}</div>`;
}

/** @param {{node: any, top: string}} props */
function Branch({ node, top }) {
  const seconds = node.started_at ? ((node.ended_at ? Date.parse(node.ended_at) : now()) - Date.parse(node.started_at)) / 1000 : null;
  return html`<li><div class="node"><${State} state=${node.state} quiet /><span class=${node.run_id ? "strong" : ""}>${node.name}</span>
    ${node.run_id && node.run_id !== top && html`<${RunLink} id=${node.run_id} />`}
    ${node.attempt > 1 && html`<span class="tag">attempt ${node.attempt}</span>`}${node.undoes && html`<span class="tag">compensation</span>`}
    <span class="faint num">${length(seconds)}</span>${node.detail && html`<span class="soft">${cut(node.detail, 140)}</span>`}</div>
    ${node.children.length > 0 && html`<ul class="tree">${node.children.slice(0, 200).map((/** @type {any} */ child) => html`<${Branch} node=${child} top=${top} />`)}${node.children.length > 200 && html`<li class="faint">and ${node.children.length - 200} more</li>`}</ul>`}</li>`;
}

/** @param {{logs: any[]}} props */
function Logs({ logs }) {
  if (!logs.length) return html`<div class="card pad soft">Nothing was logged by its steps.</div>`;
  return html`<div class="logs card">${logs.map((kept) => html`
    <section>${kept.step && html`<h3>${kept.step}${kept.attempt > 1 ? html` <span class="tag">attempt ${kept.attempt}</span>` : ""}</h3>`}
      ${kept.dropped > 0 && html`<p class="faint">${kept.dropped} earlier lines were not kept.</p>`}
      ${kept.lines.map((/** @type {any} */ line) => html`<div class=${`log ${line.level.toLowerCase()}`}><span class="faint num">${precise(line.at)}</span><span class="level">${line.level}</span><span class="mono text">${line.message}</span></div>`)}
    </section>`)}</div>`;
}
