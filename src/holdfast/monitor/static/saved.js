// Filters that were given a name; they are kept in this browser.
import { html, signal, useState } from "./html.js";
import { link } from "./api.js";
import { Dialog } from "./parts.js";

const KEY = "holdfast-views";
const GIVEN = [["Failed in the last day", "status:failed started:<1d"], ["Needs a person", "status:stuck,paused"], ["Under way", "status:running,waiting,retry"]];

/** @returns {[string, string][]} */
function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return /** @type {[string, string][]} */ (Array.isArray(found) ? found.filter((each) => Array.isArray(each) && each.length === 2 && each.every((text) => typeof text === "string")) : []);
  } catch {
    return [];
  }
}

const views = signal(read());

/** @param {[string, string][]} next */
function keep(next) {
  views.value = next;
  localStorage.setItem(KEY, JSON.stringify(next));
}

/** @param {string} filter */
const address = (filter) => link(`workflows/runs?q=${encodeURIComponent(filter)}`);

/** @param {{filter: string}} props */
export function SavedViews({ filter }) {
  const [naming, setNaming] = useState(false);
  const [name, setName] = useState("");
  /** @param {any} event */
  function save(event) {
    event.preventDefault();
    keep([...views.value.filter(([other]) => other !== name.trim()), [name.trim(), filter]]);
    setNaming(false);
    setName("");
  }
  const own = views.value.find(([, text]) => text === filter);
  return html`<div class="views" role="group" aria-label="Views">
    ${[...GIVEN, ...views.value].map(([word, text]) => html`<a class="chip" href=${address(text)} title=${text} aria-current=${text === filter ? "true" : undefined}>${word}</a>`)}
    ${filter && (own ? html`<button class="plain small" onClick=${() => keep(views.value.filter(([, text]) => text !== filter))}>Forget this view</button>`
    : !GIVEN.some(([, text]) => text === filter) && html`<button class="plain small" onClick=${() => setNaming(true)}>Save as a view…</button>`)}
    ${naming && html`<${Dialog} title="Save as a view" onClose=${() => setNaming(false)}><form onSubmit=${save}><p class="soft"><code>${filter}</code></p>
      <label>Name<input type="text" required maxlength="40" value=${name} onInput=${(/** @type {any} */ e) => setName(e.target.value)} autofocus /></label>
      <div class="buttons"><button type="button" class="plain" onClick=${() => setNaming(false)}>Leave it</button><button type="submit" class="primary">Save</button></div></form><//>`}
  </div>`;
}
