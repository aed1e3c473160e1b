// The filter of a page: a text in its address.
import { html, useEffect, useState } from "./html.js";
import { link } from "./api.js";
import { go } from "./router.js";

/** This address with changes. Who goes to another page of a list says which are before it. @param {string} page @param {Record<string, string | null>} changes */
export function addressOf(page, changes) {
  const found = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries("after" in changes ? { newer: null, ...changes } : changes)) {
    if (value) found.set(key, value);
    else found.delete(key);
  }
  const text = found.toString();
  return link(page) + (text ? `?${text}` : "");
}

/** @param {{page: string, filter: string, placeholder: string}} props */
export function FilterBox({ page, filter, placeholder }) {
  const [text, setText] = useState(filter);
  useEffect(() => setText(filter), [filter]);
  /** @param {any} event */
  function submit(event) {
    event.preventDefault();
    go(addressOf(page, { q: text.trim() || null, after: null }));
  }
  return html`<form class="filter" role="search" onSubmit=${submit}>
    <label class="unseen" for="filter">Filter</label>
    <svg viewBox="0 0 16 16" aria-hidden="true"><circle cx="7" cy="7" r="4.4" /><path d="M10.4 10.4L14 14" /></svg>
    <input id="filter" type="text" spellcheck=${false} autocomplete="off" autocapitalize="off" value=${text} placeholder=${placeholder} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
    ${filter ? html`<a class="clear" href=${addressOf(page, { q: null, after: null })}>Clear</a>` : html`<kbd aria-hidden="true">/</kbd>`}
  </form>`;
}
