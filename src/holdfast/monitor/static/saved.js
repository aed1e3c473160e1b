// Filters that were given a name: kept in the store, for all who look, by those who may act; by others in their browser.
import { html, signal, useEffect, useState } from "./html.js";
import { act, get, link } from "./api.js";
import { Dialog, Trouble } from "./parts.js";
import { about } from "./shell.js";

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

/** Those of this browser. */
const views = signal(read());
/** Those of the store. */
const shared = signal(/** @type {[string, string][]} */ ([]));

async function load() {
  const found = await get("views");
  shared.value = found.views.map((/** @type {any} */ each) => [each.name, each.filter]);
}

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
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => { load().catch(setError); }, []);
  const mayShare = about.value?.may.includes("save_view");
  /** @param {string} action @param {Record<string, unknown>} order */
  async function change(action, order) {
    try {
      await act(action, order);
      await load();
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  }
  /** @param {any} event */
  function save(event) {
    event.preventDefault();
    if (mayShare) change("save_view", { id: name.trim(), filter });
    else keep([...views.value.filter(([other]) => other !== name.trim()), [name.trim(), filter]]);
    setNaming(false);
    setName("");
  }
  function forget() {
    const known = shared.value.find(([, text]) => text === filter);
    if (known && mayShare) change("forget_view", { id: known[0] });
    keep(views.value.filter(([, text]) => text !== filter));
  }
  const all = [...GIVEN, ...shared.value, ...views.value.filter(([, text]) => !shared.value.some(([, other]) => other === text))];
  const known = shared.value.some(([, text]) => text === filter);
  const own = views.value.some(([, text]) => text === filter) || (known && mayShare);
  return html`<div class="views" role="group" aria-label="Views">
    ${all.map(([word, text]) => html`<a class="chip" href=${address(text)} title=${text} aria-current=${text === filter ? "true" : undefined}>${word}</a>`)}
    ${filter && (own ? html`<button class="plain small" onClick=${forget}>Forget this view</button>`
    : !known && !GIVEN.some(([, text]) => text === filter) && html`<button class="plain small" onClick=${() => setNaming(true)}>Save as a view…</button>`)}
    ${naming && html`<${Dialog} title="Save as a view" onClose=${() => setNaming(false)}><form onSubmit=${save}><p class="soft"><code>${filter}</code></p><p class="soft">${mayShare ? "It is shown to all who look at this store." : "It is kept in this browser."}</p>
      <label>Name<input type="text" required maxlength="40" value=${name} onInput=${(/** @type {any} */ e) => setName(e.target.value)} autofocus /></label>
      <div class="buttons"><button type="button" class="plain" onClick=${() => setNaming(false)}>Leave it</button><button type="submit" class="primary">Save</button></div></form><//>`}
    <${Trouble} error=${error} />
  </div>`;
}
