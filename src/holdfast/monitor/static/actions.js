// What can be done to a run. Each action says first what will happen.
import { html, useEffect, useState } from "./html.js";
import { act, get, link } from "./api.js";
import { payloadOf } from "./format.js";
import { Dialog, tell } from "./parts.js";
import { go } from "./router.js";

const FINAL = ["SUCCESS", "FAILURE", "CANCELLED"];

/** The actions that make sense for a run now. @param {any} run @returns {string[]} */
export function actionsOf(run) {
  if (FINAL.includes(run.status)) return [...(run.status === "SUCCESS" ? [] : ["retry"]), ...(run.durable ? ["fork"] : [])];
  const held = run.status === "PAUSED" || run.status === "STUCK";
  return [...(run.hooks.length ? ["send"] : []), ...(held ? ["resume"] : run.durable ? ["pause"] : []), ...(run.status === "STUCK" ? ["retry"] : []), ...(run.durable ? ["fork"] : []), "cancel"];
}

/** @type {Record<string, {button: string, title: string, sure: string, done: string}>} */
export const WORDS = {
  cancel: { button: "Cancel…", title: "Cancel this run?", sure: "Cancel the run", done: "Asked to cancel." },
  pause: { button: "Pause…", title: "Pause this run?", sure: "Pause the run", done: "Asked to pause." },
  resume: { button: "Resume…", title: "Resume this run?", sure: "Resume the run", done: "Asked to resume." },
  retry: { button: "Retry…", title: "Retry this run?", sure: "Retry the run", done: "Asked to retry." },
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
  const steps = run.steps.filter((/** @type {any} */ step) => !step.child_run_id);
  const open = run.steps.filter((/** @type {any} */ step) => step.state === "STARTED" || step.state === "RETRY").map((/** @type {any} */ s) => s.key || s.name);
  if (name === "cancel")
    return html`<p><code>CancelledError</code> is raised where the workflow waits. Its clean-up and compensations still run; what is done stays done.${open.length > 0 && html` Under way and interrupted: <b>${listed(open)}</b>.`}</p>`;
  if (name === "pause") return html`<p>Nothing new begins. ${open.length ? html`What executes now (<b>${listed(open)}</b>) ends, and is kept.` : "Nothing executes just now."} Timers that fall due meanwhile fire when it is resumed.</p>`;
  if (name === "resume") return html`<p>${run.status === "STUCK" ? "The code is replayed from its history. If the reason is still there, the run is stuck again, and nothing is lost." : "It goes on where it was."}</p>`;
  if (name === "retry") {
    const kept = steps.filter((/** @type {any} */ step) => step.state === "SUCCESS").length;
    const anew = run.steps.filter((/** @type {any} */ step) => step.state === "FAILURE" || step.state === "CANCELLED").map((/** @type {any} */ s) => s.key || s.name);
    return html`<p>The workflow is tried again. ${kept ? html`<b>${kept}</b> completed ${kept === 1 ? "step is" : "steps are"} kept and not done again.` : "No completed step can be kept."}${anew.length > 0 && html` What failed runs anew: <b>${listed(anew)}</b>.`}</p>`;
  }
  return null;
}

/** @param {{name: string, run: any, at?: number, close: () => void, again: () => void}} props */
export function ActionDialog({ name, run, at, close, again }) {
  const words = WORDS[name];
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [reason, setReason] = useState("");
  const [hook, setHook] = useState(run.hooks[0] ?? null);
  const [payload, setPayload] = useState("");
  const [seq, setSeq] = useState(at ?? Math.max(1, run.events - (run.finished_at ? 1 : 0)));
  const [input, setInput] = useState("");
  const [reruns, setReruns] = useState(/** @type {string[] | null} */ (null));

  useEffect(() => {
    if (name !== "fork") return;
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
    if (name === "cancel" || name === "pause") order.reason = reason;
    if (name === "send") Object.assign(order, { hook: hook.name, key: hook.key, payload: payloadOf(payload) });
    if (name === "fork") {
      order.at = seq;
      if (input.trim()) {
        try {
          order.input = JSON.parse(input);
        } catch (error) {
          setProblem(`The input isn't JSON: ${/** @type {Error} */ (error).message}`);
          return;
        }
        if (!Array.isArray(order.input)) { setProblem("The input is a list of arguments, such as [1, \"a\"]."); return; }
      }
    }
    setBusy(true);
    try {
      const answer = await act(name, order);
      tell(words.done);
      close();
      if (answer.id) go(link(`workflows/runs/${encodeURIComponent(answer.id)}`));
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
      ${(name === "cancel" || name === "pause") && html`<label>Why <span class="faint">(recorded with the run)</span><input type="text" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} autofocus /></label>`}
      ${name === "send" && html`
        ${run.hooks.length > 1 ? html`<label>Hook<select onChange=${(/** @type {any} */ e) => setHook(run.hooks[Number(e.target.value)])}>${run.hooks.map((/** @type {any} */ each, /** @type {number} */ i) => html`<option value=${i}>${each.name}${each.key ? ` (key ${each.key})` : ""}</option>`)}</select></label>`
        : html`<p>Hook <b>${hook?.name}</b>${hook?.key ? html`, key <b>${hook.key}</b>` : ""}</p>`}
        <label>Answer <span class="faint">(JSON; what isn't JSON is sent as text)</span><textarea rows="5" class="mono" spellcheck=${false} value=${payload} onInput=${(/** @type {any} */ e) => setPayload(e.target.value)} placeholder='{"ok": true}' autofocus></textarea></label>
        <p class="faint">Sent as: <code>${JSON.stringify(payloadOf(payload))}</code></p>`}
      ${name === "fork" && html`
        <p>A new run begins with this one's history up to an event, and goes on from there on its own. This run stays as it is.</p>
        <label>Last event to keep<input type="number" min="1" max=${run.events} value=${seq} onInput=${(/** @type {any} */ e) => setSeq(Number(e.target.value) || 1)} /></label>
        <label>Other arguments <span class="faint">(a JSON list; empty keeps them)</span><textarea rows="3" class="mono" spellcheck=${false} value=${input} onInput=${(/** @type {any} */ e) => setInput(e.target.value)}></textarea></label>
        <p class="soft">${reruns === null ? " " : reruns.length ? html`Under way at that point, so executed anew: <b>${listed(reruns)}</b>.` : "Nothing was under way at that point: nothing that was done is done again."}</p>`}
      ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
      <div class="buttons"><button type="button" class="plain" onClick=${close}>Leave it</button>
        <button type="submit" class=${name === "cancel" ? "danger" : "primary"} disabled=${busy || (name === "send" && !hook)}>${busy ? "…" : words.sure}</button></div>
    </form>
  <//>`;
}
