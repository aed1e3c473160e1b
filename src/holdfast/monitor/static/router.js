// Where the page is: its address is the only state that outlives it.
import { signal } from "./html.js";
import { here } from "./api.js";

export const path = signal(here());
export const query = signal(new URLSearchParams(location.search));

function look() {
  path.value = here();
  query.value = new URLSearchParams(location.search);
}

/** @param {string} href */
export function go(href) {
  const [before, began] = [location.pathname, query.value.get("after")];
  history.pushState(null, "", href);
  look();
  if (location.pathname !== before || query.value.get("after") !== began) { // another page of a list is another page
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
}

/** A part of an address, as it is if nobody can read it. @param {string} text */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("popstate", look);

addEventListener("click", (event) => {
  const found = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(found instanceof HTMLAnchorElement) || event.defaultPrevented || event.button !== 0) return;
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || found.target) return;
  if (found.origin !== location.origin || !found.pathname.startsWith(new URL(".", document.baseURI).pathname)) return;
  event.preventDefault();
  go(found.href);
});
