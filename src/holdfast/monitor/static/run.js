// One run: its state and why, what happened over time, its graph, events, values and family.
import { html, useEffect, useState } from "./html.js";
import { get, link, now, runPage, tick } from "./api.js";
import { ActionDialog, actionsOf, WORDS } from "./actions.js";
import { stringify } from "./exact.js";
import { Events } from "./events.js";
import { cut, length, precise, spoken } from "./format.js";
import { RunGraph } from "./graph.js";
import { useLive } from "./live.js";
import { Copy, ErrorBox, Json, Loading, RunLink, State, STATES, Trouble, When } from "./parts.js";
import { go, query } from "./router.js";
import { about } from "./shell.js";
import { Logs, StepPanel } from "./step_panel.js";
import { Waterfall } from "./waterfall.js";

const LONG = 400;
const VIEWS = [["", "Timeline"], ["graph", "Graph"], ["events", "Events"], ["values", "Values"], ["family", "Family"], ["statuses", "Statuses"], ["logs", "Logs"], ["stream", "Stream"]];

/** @param {{id: string}} props */
export function Run({ id }) {
  const { data: run, error, again } = useLive("run", { id }, { what: `run:${id}` });
  const [asked, setAsked] = useState(/** @type {{name: string, at?: number, replace?: number} | null} */ (null));
  useEffect(() => { document.title = run ? `${STATES[run.status]?.word ?? run.status}: ${run.workflow} ${run.id}` : "Holdfast"; }, [run]);
  if (!run) return html`<${Trouble} error=${error} />${error?.status === 404 && html`<p class="pad"><a href=${link("workflows/runs")}>All runs</a></p>`}${!error && html`<${Loading} />`}`;
  const acts = actionsOf(run).filter((name) => about.value?.may.includes(name));
  return html`
    <${Trouble} error=${error} />
    <nav class="crumbs" aria-label="Where you are"><a href=${link("workflows/runs")}>Runs</a> <span aria-hidden="true">/</span> <a href=${link(`workflows/?name=${encodeURIComponent(run.workflow)}`)}>${run.workflow}</a></nav>
    <${Head} run=${run} acts=${acts} ask=${(/** @type {string} */ name) => setAsked({ name })} />
    <${Views} run=${run} fork=${acts.includes("fork") ? (/** @type {number} */ at, /** @type {number | undefined} */ replace) => setAsked({ name: "fork", at, replace }) : undefined} />
    ${asked && html`<${ActionDialog} key=${asked.name + asked.at} name=${asked.name} at=${asked.at} replace=${asked.replace} run=${run} close=${() => setAsked(null)} again=${again} />`}`;
}

/** @param {{run: any, acts: string[], ask: (name: string) => void}} props */
export function Head({ run, acts, ask }) {
  const last = [...run.statuses].reverse().find((/** @type {any} */ each) => each.by);
  const first = acts.find((name) => name === "send" || name === "retry" || name === "resume");
  return html`<header class=${`run-head card ${STATES[run.status]?.tone ?? ""}`}>
      <div class="run-title">
        <h1>${run.workflow}</h1><${State} state=${run.status} big />${run.imported && html`<span class="tag">imported, not in this store</span>`}
        <span class="spacer"></span>
        <div class="actions">${acts.map((name) => html`<button class=${name === first ? "primary" : name === "cancel" || name === "terminate" || name === "delete" ? "danger-quiet" : ""} onClick=${() => ask(name)}>${WORDS[name].button}</button>`)}</div>
      </div>
      <p class="why"><${Why} run=${run} />${run.orders.length > 0 && html` <span class="tag">asked to ${run.orders.join(", ")}</span>`}</p>
      <dl class="facts">
        ${!run.imported && html`<div><dt>Run</dt><dd class="mono">${run.id} <${Copy} text=${run.id} /></dd></div>`}
        <div><dt>Started</dt><dd><${When} at=${run.created_at} /></dd></div>
        <div><dt>${run.finished_at ? "Took" : "So far"}</dt><dd class="num"><${Took} run=${run} /></dd></div>
        ${run.attempt > 1 && html`<div><dt>Attempt</dt><dd>${run.attempt}</dd></div>`}
        ${run.worker && html`<div><dt>Worker</dt><dd class="mono">${run.worker}</dd></div>`}
        ${run.build && html`<div><dt>Build</dt><dd class="mono">${run.build}</dd></div>`}
        ${run.parent_id && html`<div><dt>Parent</dt><dd><${RunLink} id=${run.parent_id} /></dd></div>`}
        ${run.forked_from && html`<div><dt>Fork of</dt><dd><${RunLink} id=${run.forked_from} /></dd></div>`}
        ${last && html`<div><dt>${last === run.statuses[0] ? "Started" : STATES[last.status]?.word ?? last.status} by</dt><dd>${last.by}</dd></div>`}
      </dl>
    </header>`;
}

/** @param {{run: any, fork?: (at: number, replace?: number) => void}} props */
export function Views({ run, fork }) {
  const [chosen, setChosen] = useState("");
  const [local, setLocal] = useState("");
  const view = run.imported ? local : query.value.get("view") ?? "";
  const cmd = run.imported ? chosen : query.value.get("step") ?? "";
  /** @param {string} name @param {string} step */
  const address = (name, step) => runPage(run.id, { ...(name ? { view: name } : {}), ...(step && (!name || name === "graph") ? { step } : {}) });
  const setCmd = (/** @type {string} */ to) => (run.imported ? setChosen(to) : go(address(view, to)));
  const logged = run.logs.reduce((/** @type {number} */ n, /** @type {any} */ kept) => n + kept.lines.length, 0);
  /** @type {Record<string, number>} */
  const counts = { events: run.events, logs: logged, family: run.children.length, statuses: run.statuses.length };
  const shown = VIEWS.filter(([name]) => (name === "stream" ? run.streamed || view === "stream" : name === "logs" ? logged || view === "logs" : name === "family" ? !run.imported : true));
  const choose = (/** @type {string} */ to) => setCmd(to === cmd ? "" : to);
  return html`
    <nav class="tabs" aria-label="Views of the run">${shown.map(([name, word]) => html`<a href=${run.imported ? "#" : address(name, cmd)} onClick=${run.imported ? (/** @type {any} */ e) => { e.preventDefault(); setLocal(name); } : undefined} aria-current=${view === name ? "page" : undefined}>${word}${counts[name] ? html` <span class="n">${counts[name].toLocaleString("en")}</span>` : ""}</a>`)}</nav>
    ${(view === "" || view === "graph") && html`
      ${run.error && html`<${ErrorBox} error=${run.error} />`}
      <div class=${`split ${cmd ? "on" : ""}`}>
        ${view === "graph" ? html`<${RunGraph} run=${run} given=${run.graph} chosen=${cmd} choose=${choose} />` : html`<${Waterfall} run=${run} chosen=${cmd} choose=${choose} />`}
        ${cmd && html`<${StepPanel} key=${cmd} run=${run} cmd=${cmd} close=${() => setCmd("")} fork=${fork} />`}
      </div>`}
    ${view === "events" && html`<${Events} run=${run} fork=${fork ?? (() => {})} mayFork=${Boolean(fork)} />`}
    ${view === "values" && html`<${Values} run=${run} />`}
    ${view === "family" && html`<${Family} run=${run} />`}
    ${view === "statuses" && html`<${Statuses} run=${run} />`}
    ${view === "logs" && html`<${Logs} logs=${run.logs} />`}
    ${view === "stream" && html`<${Stream} run=${run} />`}`;
}

/** @param {{run: any}} props */
function Why({ run }) {
  const [all, setAll] = useState(false);
  if (!run.imported && !run.finished_at) tick.value;
  const boxed = run.error && !run.imported && ["", "graph"].includes(query.value.get("view") ?? "");
  const text = boxed ? "failed" : spoken(run.why.marked, run.imported ? Date.parse(run.now) : now());
  if (!text) return "";
  const whole = text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
  if (all || whole.length <= LONG) return whole;
  return html`${cut(whole, LONG)} <button class="plain small" onClick=${() => setAll(true)}>Show all</button>`;
}

/** @param {{run: any}} props */
function Took({ run }) {
  if (!run.finished_at) tick.value;
  if (!run.started_at) return "–";
  return length(run.finished_at ? run.seconds : (now() - Date.parse(run.started_at)) / 1000);
}

/** @param {{run: any}} props */
function Values({ run: known }) {
  const [full, setFull] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const large = known.large.length > 0 && !known.imported;
  useEffect(() => {
    let over = false;
    if (large) get("run/values", { id: known.id }).then((answer) => !over && setFull(answer), (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [known.version]);
  if (large && !full) return error ? html`<${Trouble} error=${error} />` : html`<${Loading} rows=${4} />`;
  const run = large ? { ...known, ...full } : known;
  const data = Object.entries(run.data);
  return html`<div class="values">
    <section class="card pad"><h2>Input</h2>${run.canvas && html`<p class="mono">${cut(run.canvas, 400)}</p>`}<${Json} value=${run.input} /></section>
    <section class="card pad"><h2>Result</h2>${run.error ? html`<${ErrorBox} error=${run.error} />` : "result" in run ? html`<${Json} value=${run.result} />` : html`<p class="soft">${run.finished_at ? "It was cancelled." : "There is none yet."}</p>`}</section>
    <section class="card pad"><h2>Data</h2>${data.length ? html`<${Json} value=${run.data} />` : html`<p class="soft">The workflow has set none. <code>wf.set_data(key, value)</code> does, and runs can be filtered by it.</p>`}</section>
  </div>`;
}

/** @param {{run: any}} props */
function Family({ run }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let over = false;
    get("run/family", { id: run.id }).then((answer) => !over && setFound(answer), (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [run.version]);
  return html`<${Trouble} error=${error} />${!found && !error && html`<${Loading} rows=${4} />`}
    ${found && html`<div class="values">
      <section class="card pad"><h2>Family</h2>
        ${found.above.length > 0 && html`<p class="soft">${found.above.map((/** @type {any} */ each) => html`${each.status && html`<${State} state=${each.status} quiet /> `}${each.workflow} <${RunLink} id=${each.id} /> <span class="faint" aria-hidden="true">›</span> `)}<b>${run.workflow}</b></p>`}
        ${run.forked_from && html`<p class="soft">A fork of <${RunLink} id=${run.forked_from} full /></p>`}
        <ul class="tree root"><${Branch} node=${found.tree} top=${run.id} /></ul></section>
      ${found.process && html`<section class="card pad"><h2>Process</h2><p class="soft">All that domain events have led to, over all apps.</p><ul class="tree root"><${ProcessBranch} node=${found.process} top=${run.id} /></ul></section>`}
    </div>`}`;
}

/** @param {{node: any, top: string}} props */
function ProcessBranch({ node, top }) {
  return html`<li><div class="node">${node.kind === "event" ? html`<span class="kind hook" aria-hidden="true"></span><span class="soft">event</span> <b>${node.name}</b>` : html`${node.status && html`<${State} state=${node.status} quiet />`}<span class="strong">${node.name || node.id}</span>`}
    ${node.kind === "run" && node.id !== top && html`<${RunLink} id=${node.id} />`}${node.id === top && html`<span class="tag">this run</span>`}</div>
    ${node.children.length > 0 && html`<ul class="tree">${node.children.map((/** @type {any} */ child) => html`<${ProcessBranch} key=${child.id} node=${child} top=${top} />`)}</ul>`}</li>`;
}

/** @param {{run: any}} props */
function Statuses({ run }) {
  return html`<div class="card"><table class="plain-rows"><thead><tr><th scope="col">Status</th><th scope="col">Since</th><th scope="col" class="right">For</th><th scope="col">By</th><th scope="col" class="wide">Why</th></tr></thead>
    <tbody>${run.statuses.map((/** @type {any} */ each, /** @type {number} */ i) => {
      const next = run.statuses[i + 1]?.at;
      return html`<tr key=${i}><td data-label="Status"><${State} state=${each.status} /></td><td data-label="Since" class="num nowrap">${precise(each.at)}</td><td data-label="For" class="right num nowrap">${next ? length((Date.parse(next) - Date.parse(each.at)) / 1000) : html`<span class="faint">–</span>`}</td>
        <td data-label="By">${each.by || html`<span class="faint">–</span>`}</td><td data-label="Why" class="wide soft">${each.error || each.reason}</td></tr>`;
    })}</tbody></table></div>`;
}

/** @param {{run: any}} props */
function Stream({ run }) {
  const [items, setItems] = useState(/** @type {any[]} */ ([]));
  const [more, setMore] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  /** @param {any[]} known */
  async function load(known) {
    try {
      const found = await get("run/stream", { id: run.id, after: known.length ? known[known.length - 1].number : 0, limit: 200 });
      setItems([...known, ...found.items]);
      setMore(found.after !== null);
    } catch (failure) {
      setError(failure);
    }
  }
  useEffect(() => { if (!more) load(items); }, [run.version]);
  return html`<${Trouble} error=${error} /><div class="card logs"><section>${items.length ? items.map((each) => html`<div class="log" key=${each.number}><span class="faint num">${precise(each.at)}</span><span class="level">${each.number}</span><span class="mono text">${typeof each.item === "string" ? each.item : stringify(each.item)}</span>${each.attempt > 1 && html`<span class="tag">attempt ${each.attempt}</span>`}</div>`) : html`<p class="soft">Nothing was streamed so far.</p>`}</section>
    ${more && html`<button class="more" onClick=${() => load(items)}>Show more</button>`}</div>`;
}

/** @param {{node: any, top: string}} props */
function Branch({ node, top }) {
  const seconds = node.started_at ? ((node.ended_at ? Date.parse(node.ended_at) : now()) - Date.parse(node.started_at)) / 1000 : null;
  return html`<li><div class="node"><${State} state=${node.state} quiet /><span class=${node.run_id ? "strong" : ""}>${node.name}</span>
    ${node.run_id && node.run_id !== top && html`<${RunLink} id=${node.run_id} />`}
    ${node.attempt > 1 && html`<span class="tag">attempt ${node.attempt}</span>`}${node.reused && html`<span class="tag" title="kept from an earlier attempt">kept</span>`}${node.undoes && html`<span class="tag">compensation</span>`}${node.is_fork && html`<span class="tag">fork</span>`}
    ${(!node.reused || node.run_id) && html`<span class="faint num">${length(seconds)}</span>`}${node.detail && html`<span class="soft">${cut(node.detail, 140)}</span>`}</div>
    ${node.children.length > 0 && html`<ul class="tree">${node.children.slice(0, 200).map((/** @type {any} */ child) => html`<${Branch} node=${child} top=${top} />`)}${(node.children.length > 200 || node.left_out) && html`<li class="faint">and ${(Math.max(0, node.children.length - 200) + (node.left_out ?? 0)).toLocaleString("en")} more</li>`}</ul>`}</li>`;
}

