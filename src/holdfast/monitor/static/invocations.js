// Steps across runs, and the page of one.
import { html } from "./html.js";
import { link, now, runPage, stepPage, tick } from "./api.js";
import { addressOf, FilterBox } from "./filter_box.js";
import { length } from "./format.js";
import { useLive } from "./live.js";
import { Pager } from "./pager.js";
import { Empty, ErrorBox, Json, Loading, Moment, RunLink, State, Trouble } from "./parts.js";
import { go, query } from "./router.js";
import { Logs, StepFacts, Tries } from "./step_panel.js";

const LIMIT = 50;

export function Invocations() {
  const filter = query.value.get("q") ?? "";
  const after = query.value.get("after");
  const of = query.value.get("workflow_id");
  const asked = { q: filter, after, workflow_id: of, limit: LIMIT };
  const { data, error } = useLive("invocations", asked, of ? { what: `run:${of}` } : { what: "runs" });
  return html`<header class="head"><h1>Steps</h1><p class="soft">${of ? html`Of run <${RunLink} id=${of} full /> <a href=${addressOf("invocations", { workflow_id: null, after: null })}>all runs</a>` : "What was executed, across runs."}</p></header>
    <${FilterBox} page="invocations" filter=${filter} placeholder="step:charge* state:failed worker:ID workflow:order* started:<1h" />
    <${Trouble} error=${error} />${!data && !error && html`<${Loading} rows=${10} />`}
    ${data && (data.invocations.length ? html`<div class="card"><table class="plain-rows linked">
      <thead><tr><th scope="col">State</th><th scope="col">Step</th><th scope="col">Workflow</th><th scope="col">Run</th><th scope="col">Worker</th><th scope="col">Started</th><th scope="col" class="right">Took</th></tr></thead>
      <tbody>${data.invocations.map((/** @type {any} */ each) => html`<${Row} key=${each.run_id + each.cmd} each=${each} />`)}</tbody></table></div>`
    : html`<${Empty} title=${filter || of ? "No step fits this filter" : "No steps yet"}>${data.after ? html`${data.looked_at} runs were looked at.` : "Steps show up here once they are executed."}<//>`)}
    <${Pager} page="invocations" next=${data?.after} word=${data && data.invocations.length < LIMIT ? `Look further than these ${data.looked_at} runs ›` : undefined} />`;
}

/** @param {{each: any}} props */
function Row({ each }) {
  const runs = each.state === "STARTED";
  if (runs) tick.value;
  const seconds = runs && each.started_at ? (now() - Date.parse(each.started_at)) / 1000 : each.seconds;
  const href = each.child_run_id ? runPage(each.child_run_id) : stepPage(each.run_id, each.cmd);
  return html`<tr onClick=${(/** @type {any} */ e) => !e.target.closest("a") && !getSelection()?.toString() && go(href)}>
    <td data-label="State"><${State} state=${each.state} /></td>
    <td data-label="Step"><a class="strong" href=${href}>${each.key || each.name}</a>${each.key && each.key !== each.name && html` <span class="faint mono">${each.name}</span>`}${each.attempts > 1 && html` <span class="tag">×${each.attempts}</span>`}${each.child_run_id && html` <span class="tag">child run</span>`}${each.reused && html` <span class="tag">kept</span>`}</td>
    <td data-label="Workflow" class="soft">${each.workflow}</td><td data-label="Run"><${RunLink} id=${each.run_id} /></td>
    <td data-label="Worker" class="mono soft">${each.worker || "–"}</td><td data-label="Started" class="soft nowrap"><${Moment} at=${each.started_at} /></td><td data-label="Took" class="right num nowrap">${length(seconds) || "–"}</td></tr>`;
}

/** @param {{run: string, cmd: string}} props */
export function Invocation({ run, cmd }) {
  const { data: step, error } = useLive("invocation", { id: run, cmd }, { what: `run:${run}` });
  if (!step) return html`<${Trouble} error=${error} />${!error && html`<${Loading} />`}`;
  document.title = `${step.key || step.name} · Holdfast`;
  return html`<${Trouble} error=${error} />
    <nav class="crumbs" aria-label="Where you are"><a href=${link("invocations")}>Steps</a> <span aria-hidden="true">/</span> <a href=${link(`invocations?q=${encodeURIComponent(`step:${step.name}`)}`)}>${step.name}</a> <span aria-hidden="true">/</span> <${RunLink} id=${run} /></nav>
    <header class="run-head card"><div class="run-title"><h1>${step.key || step.name}</h1><${State} state=${step.state} big /><span class="spacer"></span><a class="button" href=${runPage(run)}>Its run</a></div>
      <p class="soft">of <b>${step.workflow}</b></p><${StepFacts} step=${step} /></header>
    ${step.error && html`<${ErrorBox} error=${step.error} />`}
    <h2 class="above">Attempts</h2>
    ${step.tries.length ? html`<${Tries} tries=${step.tries} />` : html`<p class="soft">It was never executed here${step.reused ? ": its outcome is that of an earlier attempt of the run" : ""}.</p>`}
    <div class="values below">
      <section class="card pad"><h2>Called with</h2><${Json} value=${step.call} /></section>
      <section class="card pad"><h2>Result</h2>${step.state === "SUCCESS" ? html`<${Json} value=${step.result} />` : html`<p class="soft">There is none.</p>`}</section>
      ${step.checkpoint !== null && html`<section class="card pad"><h2>Checkpoint</h2><${Json} value=${step.checkpoint} /></section>`}
    </div>
    <h2 class="above">Logs</h2><${Logs} logs=${step.logs.map((/** @type {any} */ kept) => ({ ...kept, step: `Attempt ${kept.attempt}`, attempt: 1 }))} />
    <p class="faint below">Events ${step.events.map((/** @type {number} */ seq) => html`<a class="num" href=${runPage(run, { view: "events", event: String(seq) })}>${seq}</a> `)}</p>`;
}
