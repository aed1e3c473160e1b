// One step of a run, beside what it was chosen in.
import { html, useEffect, useState } from "./html.js";
import { get, stepPage } from "./api.js";
import { length, precise } from "./format.js";
import { ErrorBox, Json, Loading, RunLink, State, Trouble, When } from "./parts.js";

/** @param {{run: any, cmd: string, close: () => void, fork?: (at: number, replace?: number) => void}} props */
export function StepPanel({ run, cmd, close, fork }) {
  const known = run.steps.find((/** @type {any} */ step) => step.cmd === cmd);
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (run.imported) return undefined;
    let over = false;
    get("invocation", { id: run.id, cmd }).then((answer) => { if (!over) { setFound(answer); setError(null); } }, (failure) => !over && setError(failure));
    return () => { over = true; };
  }, [cmd, run.version]);
  const step = found ?? known;
  if (!step) return html`<aside class="panel card" aria-label="Step"><header><h2>${cmd}</h2><span class="spacer"></span><button class="plain small" onClick=${close} aria-label="Close">✕</button></header><${Trouble} error=${error} />${!error && html`<${Loading} rows=${3} />`}</aside>`;
  return html`<aside class="panel card" aria-label=${`Step ${step.name}`}>
    <header><h2>${run.imported ? step.key || step.name : html`<a href=${stepPage(run.id, cmd)}>${step.key || step.name}</a>`}</h2><${State} state=${step.state} /><span class="spacer"></span><button class="plain small" onClick=${close} aria-label="Close">✕</button></header>
    <${StepFacts} step=${step} />
    ${fork && step.outcome_seq && html`<p class="buttons-left"><button class="small" onClick=${() => fork(step.outcome_seq, step.outcome_seq)}>Fork with another result…</button></p>`}
    <${StepBody} step=${step} />
  </aside>`;
}

/** @param {{step: any}} props */
export function StepFacts({ step }) {
  return html`<dl class="facts narrow">
      ${step.key && step.key !== step.name && html`<div><dt>Runs</dt><dd class="mono">${step.name}</dd></div>`}
      ${(step.attempts > 1 || step.max_attempts > 1) && html`<div><dt>Attempts</dt><dd>${step.attempts}${step.max_attempts ? ` of ${step.max_attempts}` : ""}</dd></div>`}
      <div><dt>Started</dt><dd class="num">${precise(step.started_at) || "–"}</dd></div>
      <div><dt>Ended</dt><dd class="num">${precise(step.ended_at) || "–"}</dd></div>
      ${step.retry_at && html`<div><dt>Next try</dt><dd><${When} at=${step.retry_at} /></dd></div>`}
      ${step.worker && html`<div><dt>Worker</dt><dd class="mono">${step.worker}</dd></div>`}
      ${step.child_run_id && html`<div><dt>Run</dt><dd><${RunLink} id=${step.child_run_id} /></dd></div>`}
      ${step.undoes && html`<div><dt>Undoes</dt><dd class="mono">${step.undoes}</dd></div>`}
      ${step.reason && html`<div><dt>Reason</dt><dd>${step.reason}</dd></div>`}
    </dl>
    ${step.reused && html`<p class="soft">Kept from an earlier attempt; it was not done again.</p>`}
    ${step.progress && html`<${Progress} progress=${step.progress} />`}`;
}

/** @param {{progress: any}} props */
function Progress({ progress }) {
  const part = progress.total ? Math.min(1, progress.done / progress.total) : null;
  return html`<p class="soft">${progress.done}${progress.total ? ` of ${progress.total}` : ""} ${progress.note ?? ""}${part !== null && html`<progress max="1" value=${part} aria-label="Progress"></progress>`}</p>`;
}

/** @param {{step: any}} props */
export function StepBody({ step }) {
  const failed = (step.tries ?? []).filter((/** @type {any} */ each) => each.error && each.state !== "FAILURE");
  return html`
    ${step.error && html`<h3>Error</h3><${ErrorBox} error=${step.error} />`}
    ${failed.length > 0 && html`<h3>Earlier attempts</h3>${failed.map((/** @type {any} */ each) => html`<details class="try"><summary><${State} state=${each.state} quiet /> <b>${each.number}</b> <span class="mono">${each.error.type}: ${each.error.message}</span></summary><${ErrorBox} error=${each.error} /></details>`)}`}
    <h3>Called with</h3><${Json} value=${step.call} />
    ${step.state === "SUCCESS" && html`<h3>Result</h3><${Json} value=${step.result} />`}
    ${step.checkpoint !== undefined && step.checkpoint !== null && html`<h3>Checkpoint</h3><${Json} value=${step.checkpoint} />`}
    ${step.logs.length > 0 && html`<h3>Logs</h3><${Logs} logs=${step.logs} />`}`;
}

/** @param {{logs: any[]}} props */
export function Logs({ logs }) {
  if (!logs.length) return html`<div class="card pad soft">Nothing was logged by its steps.</div>`;
  return html`<div class="logs card">${logs.map((kept) => html`
    <section>${kept.step && html`<h3>${kept.step}${kept.attempt > 1 ? html` <span class="tag">attempt ${kept.attempt}</span>` : ""}</h3>`}
      ${kept.dropped > 0 && html`<p class="faint">${kept.dropped} earlier lines were not kept.</p>`}
      ${kept.lines.map((/** @type {any} */ line) => html`<div class=${`log ${line.level.toLowerCase()}`}><span class="faint num">${precise(line.at)}</span><span class="level">${line.level}</span><span class="mono text">${line.message}</span></div>`)}
    </section>`)}</div>`;
}

/** @param {{tries: any[]}} props */
export function Tries({ tries }) {
  return html`<div class="card"><table class="plain-rows"><thead><tr><th scope="col" class="right">Attempt</th><th scope="col">State</th><th scope="col">Started</th><th scope="col" class="right">Took</th><th scope="col">Worker</th><th scope="col">Host</th><th scope="col" class="wide">Error</th></tr></thead>
    <tbody>${tries.map((each) => html`<tr key=${each.number + each.started_at}><td data-label="Attempt" class="right num">${each.number}</td><td data-label="State"><${State} state=${each.state} /></td><td data-label="Started" class="num nowrap">${precise(each.started_at)}</td>
      <td data-label="Took" class="right num nowrap">${each.ended_at ? length((Date.parse(each.ended_at) - Date.parse(each.started_at)) / 1000) : "–"}</td><td data-label="Worker" class="mono nowrap">${each.worker || "–"}</td>
      <td data-label="Host">${[each.host, each.pid && `pid ${each.pid}`, each.thread].filter(Boolean).join(", ") || html`<span class="faint">–</span>`}</td><td data-label="Error" class="wide soft">${each.error ? `${each.error.type}: ${each.error.message}` : ""}${each.retry_at && html` <span class="faint">next try <${When} at=${each.retry_at} /></span>`}</td></tr>`)}</tbody></table></div>`;
}
