// One workflow: how its last runs went, and a grid of their steps that shows which are flaky.
import { html, useState } from "./html.js";
import { link, runPage, stepPage } from "./api.js";
import { length } from "./format.js";
import { useLive } from "./live.js";
import { Empty, Loading, State, STATES, Trouble } from "./parts.js";
import { about } from "./shell.js";
import { StartDialog } from "./start.js";

/** @param {{rate: number | null}} props */
export function Rate({ rate }) {
  return rate === null ? html`<span class="faint">–</span>` : html`<span class=${rate < 0.9 ? "bad-text" : ""}>${rate > 0.995 && rate < 1 ? "99" : Math.round(rate * 100)} %</span>`;
}

/** @param {{name: string}} props */
export function Workflow({ name }) {
  const { data, error } = useLive("workflow", { name }, { what: "runs", q: `workflow:${JSON.stringify(name)}` });
  const [starting, setStarting] = useState(/** @type {any} */ (null)); // as it was when the dialog was opened
  const may = data?.start && about.value?.may.includes("start");
  document.title = `${name} · Holdfast`;
  const runs = link(`workflows/runs?q=${encodeURIComponent(`workflow:${name}`)}`);
  return html`<nav class="crumbs" aria-label="Where you are"><a href=${link("workflows/")}>Workflows</a></nav>
    <header class="head"><h1>${name}</h1>${data?.is_step && html`<span class="tag">step</span>`}<span class="spacer"></span><a class="button" href=${runs}>All its runs</a>${may && html`<button class="primary" onClick=${() => setStarting(data.start)}>Start a run…</button>`}</header>
    <${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && html`<dl class="numbers"><div class="card"><dt>Success</dt><dd><${Rate} rate=${data.success_rate} /></dd></div><div class="card"><dt>p50</dt><dd>${length(data.p50) || "–"}</dd></div><div class="card"><dt>p95</dt><dd>${length(data.p95) || "–"}</dd></div>
      ${Object.entries(data.counts).map(([status, n]) => html`<div class="card"><dt><${State} state=${status} /></dt><dd><a href=${`${runs}${encodeURIComponent(` status:${status.toLowerCase()}`)}`}>${Number(n).toLocaleString("en")}</a></dd></div>`)}
      ${Object.keys(data.builds).length > 0 && html`<div class="card"><dt>Builds</dt><dd class="small-text mono">${Object.entries(data.builds).map(([build, n]) => html`<div>${build} <span class="faint">× ${n}</span></div>`)}</dd></div>`}</dl>
      <p class="faint">From its last ${data.looked_at} ${data.looked_at === 1 ? "run" : "runs"}${data.total > data.looked_at ? html` of ${data.total.toLocaleString("en")}${data.more ? "+" : ""}` : ""}.</p>
      ${data.grid.steps.length ? html`<h2 class="above">Steps of the last ${data.grid.runs.length} runs</h2><div class="card grid-card" tabindex="0" role="group" aria-label="Steps and runs"><table class="step-grid">
        <thead><tr><th scope="col">Step</th><th scope="col" class="right">Success</th><th scope="col" class="right extra">Retried</th><th scope="col" class="right extra">p50</th><th scope="col" class="right extra">p95</th><th scope="col" colspan=${data.grid.runs.length}>Runs, the newest last</th></tr>
          <tr><td colspan="2" class="faint">the run itself</td><td colspan="3" class="extra"></td>${[...data.grid.runs].reverse().map((/** @type {any} */ run) => html`<td key=${run.id} class="cell"><a class=${`square ${STATES[run.status]?.tone}`} href=${runPage(run.id)} title=${`${run.id}: ${STATES[run.status]?.word}`} aria-label=${`${run.id}, ${STATES[run.status]?.word}`}></a></td>`)}</tr></thead>
        <tbody>${data.grid.steps.map((/** @type {any} */ step) => html`<tr key=${step.name}><th scope="row">${step.name}</th><td class="right num"><${Rate} rate=${step.success_rate} /></td><td class="right num extra">${step.retried ? html`<span class="warn-text">${step.retried}</span>` : html`<span class="faint">–</span>`}</td><td class="right num nowrap extra">${length(step.p50) || "–"}</td><td class="right num nowrap extra">${length(step.p95) || "–"}</td>
          ${step.cells.map((/** @type {any} */ cell, /** @type {number} */ i) => ({ cell, run: data.grid.runs[i] })).reverse().map((/** @type {any} */ { cell, run }) => html`<td key=${run.id} class="cell">${cell ? html`<a class=${`square ${STATES[cell.state]?.tone} ${cell.attempts > 1 ? "again" : ""}`} href=${stepPage(run.id, cell.cmd)} title=${`${step.name} in ${run.id}: ${STATES[cell.state]?.word}${cell.attempts > 1 ? `, ${cell.attempts} attempts` : ""}${cell.count > 1 ? `, × ${cell.count}` : ""}`} aria-label=${`${step.name} in ${run.id}, ${STATES[cell.state]?.word}${cell.attempts > 1 ? `, ${cell.attempts} attempts` : ""}`}>${cell.attempts > 1 ? cell.attempts : ""}</a>` : html`<span class="square none"></span>`}</td>`)}</tr>`)}</tbody></table></div>`
      : html`<${Empty} title="No steps yet">Once it runs, its steps show up here.<//>`}`}
    ${starting && html`<${StartDialog} name=${name} start=${starting} close=${() => setStarting(null)} />`}`;
}
