// Pages of a list. The address has where this one begins, and where those before it did: `newer`, from the first on.
import { html } from "./html.js";
import { addressOf } from "./filter_box.js";
import { decoded, query } from "./router.js";

/** So many pages back can be gone one by one. */
const TRAIL = 50;
const FIRST = "-";

/** @returns {string[]} */
function trail() {
  return query.value.get("newer")?.split(",") ?? [];
}

/** The page after this one. @param {string} page @param {string | number} next */
export function olderAddress(page, next) {
  const here = encodeURIComponent(query.value.get("after") ?? "") || FIRST;
  return addressOf(page, { after: String(next), newer: [...trail(), here].slice(-TRAIL).join(",") });
}

/** The page before this one; empty on the first one, and if the address doesn't say where it began. @param {string} page */
export function newerAddress(page) {
  const before = trail();
  const last = before.pop();
  if (last === undefined || !query.value.get("after")) return "";
  return addressOf(page, { after: last === FIRST ? null : decoded(last), newer: before.join(",") || null });
}

/** @param {{page: string, next: string | number | null | undefined, word?: string}} props */
export function Pager({ page, next, word = "Older ›" }) {
  const after = query.value.get("after");
  const newer = newerAddress(page);
  if (!after && !next) return null;
  return html`<nav class="pager" aria-label="Pages">
    ${after && html`<a class="button" href=${addressOf(page, { after: null })}>« Newest</a>`}
    ${newer && html`<a class="button" rel="prev" href=${newer}>‹ Newer</a>`}
    ${next && html`<a class="button" rel="next" href=${olderAddress(page, next)}>${word}</a>`}</nav>`;
}
