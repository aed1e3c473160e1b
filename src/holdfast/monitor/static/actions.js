// What can be done to a run. Each action says first what will happen.
import { html, useEffect, useState } from "./html.js";
import { act, get, link, runPage } from "./api.js";
import { parse, stringify } from "./exact.js";
import { payloadOf } from "./format.js";
import { Dialog, tell } from "./parts.js";
import { SchemaForm } from "./form.js";
import { go } from "./router.js";

const FINAL = ["SUCCESS", "FAILURE", "CANCELLED"];

/** The actions that make sense for a run now. @param {any} run @returns {string[]} */
export function actionsOf(run) {
  if (FINAL.includes(run.status)) return [...(run.status === "SUCCESS" ? [] : ["retry"]), ...(run.durable ? ["fork"] : []), "delete"];
  const held = run.status === "PAUSED" || run.status === "STUCK";
  return [...(run.hooks.length ? ["send"] : []), ...(held ? ["resume"] : run.durable ? ["pause"] : []), ...(run.status === "STUCK" ? ["retry"] : []), ...(run.durable ? ["fork"] : []), ...(run.status === "STUCK" || run.why.details.cancel_requested_at ? ["terminate"] : []), "cancel"];
}

/** @type {Record<string, {button: string, title: string, sure: string, done: string}>} */
export const WORDS = {
  cancel: { button: "Cancel…", title: "Cancel this run?", sure: "Cancel the run", done: "Asked to cancel." },
  pause: { button: "Pause…", title: "Pause this run?", sure: "Pause the run", done: "Asked to pause." },
  resume: { button: "Resume…", title: "Resume this run?", sure: "Resume the run", done: "Asked to resume." },
  retry: { button: "Retry…", title: "Retry this run?", sure: "Retry the run", done: "Asked to retry." },
  terminate: { button: "Terminate…", title: "Terminate this run?", sure: "Terminate the run", done: "Asked to terminate." },
  delete: { button: "Delete…", title: "Delete this run?", sure: "Delete the run", done: "The run was deleted." },
  fork: { button: "Fork…", title: "Fork this run", sure: "Start the fork", done: "The fork was started." },
  send: { button: "Answer hook…", title: "Answer a hook", sure: "Send the answer", done: "The answer was sent." },
};

/** @param {string[]} names */
function listed(names) {
  const shown = names.slice(0, 6).join(", ");
  return names.length > 6 ? `${shown} and ${names.length - 6} more` : shown;
}

/** @param {{name: string, run: any}} props */
function Consequence({ name, run }) {
  const open = [...run.step_names.STARTED, ...run.step_names.RETRY];
  if (name === "cancel")
    return html`<p><code>CancelledError</code> is raised where the workflow waits. Its clean-up and compensations still run; what is done stays done.${open.length > 0 && html` Under way and interrupted: <b>${listed(open)}</b>.`}</p>`;
  if (name === "pause") return html`<p>Nothing new begins. ${open.length ? html`What executes now (<b>${listed(open)}</b>) ends, and is kept.` : "Nothing executes just now."} Timers that fall due meanwhile fire when it is resumed.</p>`;
  if (name === "resume") return html`<p>${run.status === "STUCK" ? "The code is replayed from its history. If the reason is still there, the run is stuck again, and nothing is lost." : "It goes on where it was."}</p>`;
  if (name === "retry") {
    const kept = run.kept_by_retry;
    const anew = [...run.step_names.FAILURE, ...run.step_names.CANCELLED];
    return html`<p>The workflow is tried again. ${kept ? html`<b>${kept}</b> completed ${kept === 1 ? "step is" : "steps are"} kept and not done again.` : "No completed step can be kept."}${anew.length > 0 && html` What failed runs anew: <b>${listed(anew)}</b>.`}</p>`;
  }
  if (name === "terminate") return html`<p>Nothing of its code runs any more, not even its clean-up and compensations; children that it waits for end likewise. For a run that can't be cancelled.</p>`;
  if (name === "delete") return html`<p>The run is forgotten, with its history, its data and its logs. This can't be undone.</p>`;
  return null;
}

/** @param {{name: string, run: any, at?: number, replace?: number, close: () => void, again: () => void}} props */
export function ActionDialog({ name, run, at, replace, close, again }) {
  const words = WORDS[name];
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [reason, setReason] = useState("");
  const [hook, setHook] = useState(run.hooks[0] ?? null);
  const [payload, setPayload] = useState("");
  const [answer, setAnswer] = useState(/** @type {any} */ (undefined));
  const [result, setResult] = useState("");
  const [seq, setSeq] = useState(at ?? Math.max(1, run.events - (run.finished_at ? 1 : 0)));
  const [input, setInput] = useState("");
  const [reruns, setReruns] = useState(/** @type {string[] | null} */ (null));

  useEffect(() => {
    if (!replace) return undefined;
    let over = false;
    get("run/event", { id: run.id, seq: replace }).then((found) => !over && setResult(stringify(found.event.detail.result ?? null, 2)), (error) => !over && setProblem(error.message));
    return () => { over = true; };
  }, [replace]);
  useEffect(() => {
    if (name !== "fork") return undefined;
    let over = false;
    setReruns(null);
    setProblem("");
    get("run/reruns", { id: run.id, at: seq }).then((found) => !over && setReruns(found.reruns), (error) => !over && setProblem(error.message));
    return () => { over = true; };
  }, [name, seq]);

  /** @param {any} event */
  async function submit(event) {
    event.preventDefault();
    /** @type {Record<string, unknown>} */
    const order = { id: run.id };
    if (name === "cancel" || name === "pause" || name === "terminate") order.reason = reason;
    if (name === "send") Object.assign(order, { hook: hook.name, key: hook.key, payload: hook.schema ? answer : payloadOf(payload) });
    if (name === "fork") {
      order.at = seq;
      if (replace) {
        try {
          order.replace = { [replace]: parse(result) };
        } catch (error) {
          setProblem(`The result isn't JSON: ${/** @type {Error} */ (error).message}`);
          return;
        }
      }
      if (input.trim()) {
        try {
          order.input = parse(input);
        } catch (error) {
          setProblem(`The input isn't JSON: ${/** @type {Error} */ (error).message}`);
          return;
        }
        if (!Array.isArray(order.input)) { setProblem("The input is a list of arguments, such as [1, \"a\"]."); return; }
      }
    }
    setBusy(true);
    try {
      const done = await act(name, order);
      tell(words.done);
      close();
      if (name === "delete") go(link("workflows/runs"));
      else if (done.id) go(runPage(done.id));
      else again();
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setBusy(false);
    }
  }

  return html`<${Dialog} title=${words.title} onClose=${close}>
    <form onSubmit=${submit}>
      <p class="soft"><b>${run.workflow}</b> <span class="mono">${run.id}</span></p>
      <${Consequence} name=${name} run=${run} />
      ${(name === "cancel" || name === "pause" || name === "terminate") && html`<label>Why <span class="faint">(recorded with the run)</span><input type="text" required=${name === "terminate"} value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} autofocus /></label>`}
      ${name === "send" && html`
        ${run.hooks.length > 1 ? html`<label>Hook<select onChange=${(/** @type {any} */ e) => setHook(run.hooks[Number(e.target.value)])}>${run.hooks.map((/** @type {any} */ each, /** @type {number} */ i) => html`<option value=${i}>${each.name}${each.key ? ` (key ${each.key})` : ""}</option>`)}</select></label>`
        : html`<p>Hook <b>${hook?.name}</b>${hook?.key ? html`, key <b>${hook.key}</b>` : ""}</p>`}
        ${hook?.schema ? html`<${SchemaForm} key=${hook.name + hook.key} schema=${hook.schema} change=${setAnswer} />` : html`
        <label>Answer <span class="faint">(JSON; what isn't JSON is sent as text)</span><textarea rows="5" class="mono" spellcheck=${false} value=${payload} onInput=${(/** @type {any} */ e) => setPayload(e.target.value)} placeholder='{"ok": true}' autofocus></textarea></label>`}
        <p class="faint">Sent as: <code>${stringify(hook?.schema ? answer : payloadOf(payload))}</code></p>`}
      ${name === "fork" && html`
        <p>A new run begins with this one's history up to an event, and goes on from there on its own. This run stays as it is.</p>
        <label>Last event to keep<input type="number" min="1" max=${run.events} value=${seq} onInput=${(/** @type {any} */ e) => setSeq(Number(e.target.value) || 1)} /></label>
        ${replace && html`<label>Result of event ${replace} in the fork <span class="faint">(JSON)</span><textarea rows="4" class="mono" required spellcheck=${false} value=${result} onInput=${(/** @type {any} */ e) => setResult(e.target.value)} autofocus></textarea></label>`}
        <label>Other arguments <span class="faint">(a JSON list; empty keeps them)</span><textarea rows="3" class="mono" spellcheck=${false} value=${input} onInput=${(/** @type {any} */ e) => setInput(e.target.value)}></textarea></label>
        <p class="soft">${reruns === null ? " " : reruns.length ? html`Under way at that point, so executed anew: <b>${listed(reruns)}</b>.` : "Nothing was under way at that point: nothing that was done is done again."}</p>`}
      ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
      <div class="buttons"><button type="button" class="plain" onClick=${close}>Leave it</button>
        <button type="submit" class=${name === "cancel" || name === "terminate" || name === "delete" ? "danger" : "primary"} disabled=${busy || (name === "send" && !hook)}>${busy ? "…" : words.sure}</button></div>
    </form>
  <//>`;
}
