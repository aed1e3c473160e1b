// One action on many runs: those that are chosen, or all that a filter finds. It is told first how many they are.
import { html, useEffect, useRef, useState } from "./html.js";
import { actOnMany, get } from "./api.js";
import { Dialog, State, tell } from "./parts.js";
import { about } from "./shell.js";

const WORDS = /** @type {Record<string, {button: string, verb: string, text: string, danger?: boolean}>} */ ({
  cancel: { button: "Cancel", verb: "cancelled", text: "CancelledError is raised where each of them waits; clean-up and compensations still run.", danger: true },
  pause: { button: "Pause", verb: "paused", text: "Nothing new begins in them; what executes ends, and is kept." },
  resume: { button: "Resume", verb: "resumed", text: "They go on where they were. Those that are stuck are replayed with the code of now." },
  retry: { button: "Retry", verb: "retried", text: "Each is tried again; the steps that it has completed are kept, what failed runs anew." },
  delete: { button: "Delete", verb: "deleted", text: "They are forgotten, with their histories. This can't be undone.", danger: true },
});
const REASONED = ["cancel", "pause"];

/** @param {{filter: string, picked: Set<string>, some: boolean, clear: () => void}} props */
export function BulkBar({ filter, picked, some, clear }) {
  const [asked, setAsked] = useState(/** @type {{name: string, ids: string[] | null} | null} */ (null));
  const may = Object.keys(WORDS).filter((name) => about.value?.may.includes(name));
  if (!may.length || (!picked.size && !filter) || !some) return null;
  const ids = picked.size ? [...picked] : null;
  return html`<div class="bulk" role="toolbar" aria-label="Actions on many runs">
    <span class="soft">${ids ? html`<b>${ids.length}</b> chosen` : "All that the filter finds:"}</span>
    ${may.map((name) => html`<button class=${`small ${WORDS[name].danger ? "danger-quiet" : ""}`} onClick=${() => setAsked({ name, ids })}>${WORDS[name].button}…</button>`)}
    ${ids && html`<button class="plain small" onClick=${clear}>Choose none</button>`}
    ${asked && html`<${BulkDialog} name=${asked.name} ids=${asked.ids} filter=${filter} close=${() => setAsked(null)} done=${() => { setAsked(null); clear(); }} />`}
  </div>`;
}

/** @param {{name: string, ids: string[] | null, filter: string, fingerprint?: string, count?: number, close: () => void, done: () => void}} props */
export function BulkDialog({ name, ids, filter, fingerprint, count, close, done }) {
  const words = WORDS[name];
  const known = ids ? { count: ids.length, more: false, statuses: {}, upto: 0 } : count !== undefined ? { count, more: false, statuses: {}, upto: 0 } : null;
  const [found, setFound] = useState(/** @type {any} */ (known));
  const [problem, setProblem] = useState("");
  const [reason, setReason] = useState("");
  const [progress, setProgress] = useState(/** @type {{done: number, skipped: number} | null} */ (null));
  const stopped = useRef(false);
  useEffect(() => {
    if (known) return undefined;
    let over = false;
    get(`bulk/${name}`, { q: filter }).then((answer) => !over && setFound(answer), (error) => !over && setProblem(error.message));
    return () => { over = true; };
  }, []);

  /** @param {any} event */
  async function submit(event) {
    event.preventDefault();
    let sum = { done: 0, skipped: 0 };
    let after = null;
    setProgress(sum);
    setProblem("");
    try {
      do {
        const order = ids ? { ids, reason } : fingerprint ? { q: filter, fingerprint, reason } : { q: filter, upto: found.upto, after, reason };
        const batch = await actOnMany(name, order);
        sum = { done: sum.done + batch.done, skipped: sum.skipped + batch.skipped };
        after = batch.after;
        setProgress(sum);
      } while (after !== null && !stopped.current);
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      return;
    }
    tell(`${sum.done} ${sum.done === 1 ? "run is" : "runs are"} ${name === "delete" ? "" : "asked to be "}${words.verb}.${sum.skipped ? ` It no longer applies to ${sum.skipped} others.` : ""}`);
    done();
  }

  const total = found ? `${found.count.toLocaleString("en")}${found.more ? " or more" : ""}` : "…";
  return html`<${Dialog} title=${`${words.button} many runs?`} onClose=${() => { stopped.current = true; close(); }}>
    <form onSubmit=${submit}>
      <p class="big-number" role="status">${total} <span>${found?.count === 1 ? "run" : "runs"}</span></p>
      ${filter && !ids && html`<p class="soft">that fit <code>${filter}</code>${fingerprint ? " and have failed like this" : ""}, as of now</p>`}
      ${found && Object.keys(found.statuses).length > 0 && html`<p class="state-list">${Object.entries(found.statuses).map(([status, n]) => html`<span><${State} state=${status} /> ${n}</span>`)}</p>`}
      <p>${words.text}</p>
      ${REASONED.includes(name) && html`<label>Why <span class="faint">(recorded with each run)</span><input type="text" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} autofocus /></label>`}
      ${progress && html`<p class="soft"><progress max=${found.count || 1} value=${progress.done}></progress> ${progress.done} done</p>`}
      ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
      <div class="buttons"><button type="button" class="plain" onClick=${() => { stopped.current = true; close(); }}>${progress ? "Stop here" : "Leave them"}</button>
        <button type="submit" class=${words.danger ? "danger" : "primary"} disabled=${!found || found.count === 0 || Boolean(progress && !problem)}>${words.button} ${total}</button></div>
    </form>
  <//>`;
}
