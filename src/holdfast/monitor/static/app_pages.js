// Pages about the app: its workflows, workers, schedules, and the hooks that wait for people.
import { html, useState } from "./html.js";
import { act, get, link, runPage } from "./api.js";
import { ActionDialog } from "./actions.js";
import { callText, clock, cut, length } from "./format.js";
import { useLive } from "./live.js";
import { Pager } from "./pager.js";
import { Dialog, Empty, Loading, Moment, RunLink, State, STATES, tell, Trouble, When } from "./parts.js";
import { go, query } from "./router.js";
import { about } from "./shell.js";
import { Rate, Workflow } from "./workflow.js";

/** @param {string} name */
const pageOf = (name) => link(`workflows/?name=${encodeURIComponent(name)}`);

export function Workflows() {
  const name = query.value.get("name");
  return name ? html`<${Workflow} key=${name} name=${name} />` : html`<${AllWorkflows} />`;
}

function AllWorkflows() {
  const { data, error } = useLive("workflows", {}, { what: "workflows" });
  return html`<header class="head"><h1>Workflows</h1>${data && html`<p class="soft">Success and times are those of the last ${data.looked_at} runs of each.</p>`}</header>
    <${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (data.workflows.length ? html`<div class="card"><table class="plain-rows">
      <thead><tr><th scope="col">Workflow</th><th scope="col">Last runs</th><th scope="col" class="right">Runs</th><th scope="col" class="right">Success</th><th scope="col" class="right">p50</th><th scope="col" class="right">p95</th><th scope="col">Last</th></tr></thead>
      <tbody>${data.workflows.map((/** @type {any} */ each) => html`<tr key=${each.name} onClick=${(/** @type {any} */ e) => !e.target.closest("a") && go(pageOf(each.name))}>
          <td data-label="Workflow"><a class="strong" href=${pageOf(each.name)}>${each.name}</a>${each.is_step && html` <span class="tag">step</span>`}</td>
          <td data-label="Last runs"><span class="strip">${[...each.last].reverse().map((/** @type {any} */ run) => html`<a class=${STATES[run.status]?.tone} href=${runPage(run.id)} title=${`${run.status}: ${run.id}`} aria-label=${`${run.id}, ${run.status}`}></a>`)}</span></td>
          <td data-label="Runs" class="right num">${each.total.toLocaleString("en")}${each.more ? "+" : ""}</td>
          <td data-label="Success" class="right num"><${Rate} rate=${each.success_rate} /></td>
          <td data-label="p50" class="right num nowrap">${length(each.p50) || "–"}</td><td data-label="p95" class="right num nowrap">${length(each.p95) || "–"}</td>
          <td data-label="Last" class="soft nowrap"><${Moment} at=${each.last_at} /></td></tr>`)}</tbody></table></div>` : html`<${Empty} title="No workflows known">Start a worker, or the monitor with <code>-A module</code>.<//>`)}`;
}

export function Workers() {
  const { data, error } = useLive("workers", {}, { what: "workers" });
  return html`<header class="head"><h1>Workers</h1></header><${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (data.workers.length ? html`<div class="card"><table class="plain-rows">
      <thead><tr><th scope="col">Life</th><th scope="col">Worker</th><th scope="col">Host</th><th scope="col" class="right">Runs</th><th scope="col">Up since</th><th scope="col">Build</th><th scope="col" class="wide">Knows</th></tr></thead>
      <tbody>${data.workers.map((/** @type {any} */ each) => html`<tr key=${each.id}>
        <td data-label="Life">${each.alive ? html`<span class="state good"><span class="pulse" aria-hidden="true"></span>Alive</span>` : html`<span class="state bad">Silent for ${length(-each.lease_seconds)}</span>`}</td>
        <td data-label="Worker" class="mono"><a href=${link(`workflows/runs?q=${encodeURIComponent(`worker:${each.id}`)}`)}>${each.id}</a></td>
        <td data-label="Host">${each.host} <span class="faint">pid ${each.pid}</span></td>
        <td data-label="Runs" class="right num">${each.runs}</td>
        <td data-label="Up since" class="soft nowrap"><${When} at=${each.started_at} /></td>
        <td data-label="Build" class="mono soft">${each.build}</td>
        <td data-label="Knows" class="wide soft">${cut((each.names.length ? each.names : each.steps).join(", "), 200)}${each.queues.length > 0 && html` ${each.queues.map((/** @type {string} */ queue) => html`<span class="tag">queue ${queue}</span> `)}`}</td></tr>`)}</tbody></table></div>`
    : html`<${Empty} title="No worker is alive">Nothing goes on until there is one: <code>holdfast -A module worker</code><//>`)}
    ${data?.queues.length > 0 && html`<h2 class="above">Queues</h2><div class="card"><table class="plain-rows"><thead><tr><th scope="col">Queue</th><th scope="col" class="right">Waiting</th><th scope="col">Since</th><th scope="col" class="right">Executing</th><th scope="col">Served</th></tr></thead>
      <tbody>${data.queues.map((/** @type {any} */ each) => html`<tr key=${each.name}><td data-label="Queue" class="strong">${each.name}</td><td data-label="Waiting" class="right num">${each.waiting}</td><td data-label="Since" class="soft nowrap"><${Moment} at=${each.since} /></td><td data-label="Executing" class="right num">${each.claimed}</td>
        <td data-label="Served">${each.served ? html`<span class="state good">by a live worker</span>` : html`<span class="state bad">by nobody</span>`}</td></tr>`)}</tbody></table></div>`}`;
}

export function Schedules() {
  const { data, error, again } = useLive("schedules", {}, { what: "schedules" });
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const may = about.value?.may.includes("pause_schedule");
  return html`<header class="head"><h1>Schedules</h1></header><${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (data.schedules.length ? html`<div class="card"><table class="plain-rows">
      <thead><tr><th scope="col">Schedule</th><th scope="col">When</th><th scope="col">Next</th><th scope="col">Last run</th><th scope="col">Doing</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${data.schedules.map((/** @type {any} */ each) => html`<tr key=${each.name}>
        <td data-label="Schedule"><span class="strong">${each.name}</span><div class="faint mono">${cut(each.workflow + callText(each.call), 60)}</div></td>
        <td data-label="When">${each.when} <span class="faint">${each.tz}</span></td>
        <td data-label="Next" class="nowrap"><${Moment} at=${each.next_at} /><div class="faint">${clock(each.next_at)}</div></td>
        <td data-label="Last run">${each.last_run_id ? html`<${RunLink} id=${each.last_run_id} />` : html`<span class="faint">–</span>`}</td>
        <td data-label="Doing">${each.paused ? html`<${State} state="PAUSED" /> <span class="faint">${each.reason}</span>` : each.is_active ? html`<${State} state="RUNNING" />` : html`<span class="faint">–</span>`}${each.queued.length > 0 && html` <span class="tag">${each.queued.length} queued</span>`}</td>
        <td class="right acts">${may && html`<button class="small" onClick=${() => setAsked({ name: "trigger_schedule", row: each })}>Run now…</button> <button class="small" onClick=${() => setAsked({ name: each.paused ? "resume_schedule" : "pause_schedule", row: each })}>${each.paused ? "Resume…" : "Pause…"}</button>`}</td></tr>`)}</tbody></table></div>`
    : html`<${Empty} title="No schedules">Give a workflow one: <code>@app.workflow(schedule="0 2 * * *")</code>. It is known once a worker has started.<//>`)}
    ${asked && html`<${ScheduleDialog} ...${asked} close=${() => setAsked(null)} again=${again} />`}`;
}

/** @type {Record<string, {title: string, text: string, sure: string}>} */
const SCHEDULE_WORDS = {
  trigger_schedule: { title: "Start a run now?", text: "One run starts now, beside the schedule's own ticks.", sure: "Start it" },
  pause_schedule: { title: "Pause this schedule?", text: "It starts nothing by itself, also after a deploy, until it is resumed. Runs that go on are left alone.", sure: "Pause it" },
  resume_schedule: { title: "Resume this schedule?", text: "It goes on with its next tick. Ticks of the time between are not made up for.", sure: "Resume it" },
};

/** @param {{name: string, row: any, close: () => void, again: () => void}} props */
function ScheduleDialog({ name, row, close, again }) {
  const [problem, setProblem] = useState("");
  const words = SCHEDULE_WORDS[name];
  async function confirm() {
    try {
      const answer = await act(name, { id: row.name });
      close();
      if (answer.id) go(runPage(answer.id));
      else { tell("Done."); again(); }
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
    }
  }
  return html`<${Dialog} title=${words.title} onClose=${close}><p class="soft"><b>${row.name}</b></p><p>${words.text}</p>${problem && html`<p class="trouble" role="alert">${problem}</p>`}
    <div class="buttons"><button class="plain" onClick=${close}>Leave it</button><button class="primary" onClick=${confirm} autofocus>${words.sure}</button></div><//>`;
}

export function Hooks() {
  const after = query.value.get("after");
  const { data, error, again } = useLive("hooks", { after }, { what: "hooks", after });
  const [run, setRun] = useState(/** @type {any} */ (null));
  const may = about.value?.may.includes("send");
  /** @param {any} hook */
  async function answer(hook) {
    try {
      const found = await get("run", { id: hook.run_id });
      setRun({ ...found, hooks: [{ name: hook.name, key: hook.key, schema: hook.schema }] });
    } catch (failure) {
      tell(/** @type {Error} */ (failure).message, true);
    }
  }
  return html`<header class="head"><h1>Waiting hooks</h1><p class="soft">Runs that wait for an answer from outside.</p></header><${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (data.hooks.length ? html`<div class="card"><table class="plain-rows">
      <thead><tr><th scope="col">Hook</th><th scope="col">Workflow</th><th scope="col">Run</th><th scope="col">Waits since</th><th scope="col">Until</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${data.hooks.map((/** @type {any} */ each) => html`<tr key=${each.run_id + each.name + each.key}>
        <td data-label="Hook"><span class="strong">${each.name}</span>${each.key && html` <span class="tag">${each.key}</span>`}</td>
        <td data-label="Workflow">${each.workflow}</td><td data-label="Run"><${RunLink} id=${each.run_id} /></td>
        <td data-label="Waits since" class="soft nowrap"><${Moment} at=${each.since} /></td><td data-label="Until" class="soft nowrap"><${Moment} at=${each.until} /></td>
        <td class="right">${may && html`<button class="small primary" onClick=${() => answer(each)}>Answer…</button>`}</td></tr>`)}</tbody></table></div>`
    : data.after || after ? html`<${Empty} title="None on this page">Other pages may have hooks that wait.<//>`
    : html`<${Empty} title="Nothing waits for you">Workflows that <code>await hook("approval")</code> show up here.<//>`)}
    <${Pager} page="hooks" next=${data?.after} />
    ${run && html`<${ActionDialog} name="send" run=${run} close=${() => setRun(null)} again=${again} />`}`;
}
