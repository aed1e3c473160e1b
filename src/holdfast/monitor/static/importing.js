// A run from a file: what `holdfast runs export` has printed. It is looked at and not kept.
import { html, useState } from "./html.js";
import { inspect } from "./api.js";
import { Head, Views } from "./run.js";
import { Trouble } from "./parts.js";

export function Import() {
  const [run, setRun] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [over, setOver] = useState(false);
  /** @param {File | undefined} file */
  async function read(file) {
    setOver(false);
    if (!file) return;
    setError(null);
    try {
      setRun({ ...(await inspect(await file.text())), version: `${file.name}${file.lastModified}` });
    } catch (failure) {
      setError(failure);
    }
  }
  return html`<header class="head"><h1>Import</h1><p class="soft">Look at a run that was exported elsewhere. Nothing is kept.</p></header>
    <${Trouble} error=${error} />
    <label class=${`drop card ${over ? "over" : ""} ${run ? "small" : ""}`} onDragOver=${(/** @type {any} */ e) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${(/** @type {any} */ e) => { e.preventDefault(); read(e.dataTransfer.files[0]); }}>
      <span><b>${run ? "Another file" : "Choose a file"}</b>, or drop it here</span>${!run && html`<span class="faint">from <code>holdfast runs export RUN > run.jsonl</code></span>`}
      <input type="file" class="unseen" accept=".jsonl,.json,.txt" onChange=${(/** @type {any} */ e) => read(e.target.files[0])} /></label>
    ${run && html`<div class="below" key=${run.version}><${Head} run=${run} acts=${[]} ask=${() => {}} /><${Views} run=${run} /></div>`}`;
}
