// What is around every page: where one is, the theme, and whether the page is live.
import { html, signal, useEffect, useState } from "./html.js";
import { connection, get, link, unreadable } from "./api.js";
import { Findings } from "./findings.js";
import { Dialog, Messages } from "./parts.js";
import { go, path } from "./router.js";

/** About the app; null until it is known. */
export const about = signal(/** @type {any} */ (null));
get("about").then((found) => { about.value = found; }).catch(() => {});

const NAV = [["workflows/runs", "Runs", "r"], ["failures", "Failures", "f"], ["workflows/", "Workflows", "w"], ["invocations", "Steps", "i"], ["timeline", "Timeline", "t"], ["hooks", "Hooks", "h"], ["schedules", "Schedules", "s"], ["workers", "Workers", "k"], ["import", "Import", "m"]];
const KEYS = [["/", "filter runs"], ["j k", "next, previous run"], ["Enter", "open it"], ["x", "choose it, for an action on many"], ["n p", "older, newer page"], ["1 – 8", "views of a run"], ["g then r f w i t h s k m", "go to runs, failures, workflows, steps, timeline, hooks, schedules, workers, import"], ["t", "light, dark"], ["?", "these keys"], ["Esc", "close, leave the filter"]];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** @param {{children?: any}} props */
export function Shell({ children }) {
  const [dark, setDark] = useState(isDark());
  const [help, setHelp] = useState(false);
  function turn() {
    const to = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = to;
    localStorage.setItem("holdfast-theme", to);
    setDark(to === "dark");
  }
  useEffect(() => {
    let going = false;
    /** @param {KeyboardEvent} event */
    function press(event) {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.key === "Escape" && target.closest("input")) target.blur();
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select") || document.querySelector("dialog[open]")) return;
      const to = going && NAV.find(([, , key]) => key === event.key);
      going = event.key === "g";
      if (to) go(link(to[0]));
      else if (event.key >= "1" && event.key <= "9") /** @type {HTMLElement | undefined} */ (document.querySelectorAll(".tabs a")[Number(event.key) - 1])?.click();
      else if (event.key === "?") setHelp(true);
      else if (event.key === "t") turn();
      else if (event.key === "Escape") /** @type {HTMLElement | null} */ (document.querySelector(".panel button[aria-label=Close]"))?.click();
      else if (event.key === "/") {
        event.preventDefault();
        const box = document.getElementById("filter");
        if (box) box.focus();
        else {
          go(link("workflows/runs"));
          setTimeout(() => document.getElementById("filter")?.focus(), 100);
        }
      }
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const at = path.value;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {any} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${link("workflows/runs")}><img src=${link("static/icon.svg")} alt="" width="26" height="26" /><span>Holdfast</span></a>
      ${about.value && html`<span class="app" title=${about.value.store}>${about.value.app}${about.value.read_only ? html` <span class="tag">read-only</span>` : ""}</span>`}
      <nav aria-label="Pages">${NAV.map(([to, word]) => html`<a href=${link(to)} aria-current=${at === to || ((to === "workflows/runs" || to === "invocations") && at.startsWith(`${to}/`)) ? "page" : undefined}>${word}</a>`)}</nav>
      <span class="spacer"></span>
      <span class=${`live is-${unreadable.value ? "lost" : connection.value}`} role="status"><i aria-hidden="true"></i><span>${unreadable.value ? "Store can't be read" : connection.value === "live" ? "Live" : connection.value === "lost" ? "Reconnecting" : "…"}</span></span>
      <button class="plain icon" onClick=${turn} aria-label=${dark ? "Light theme" : "Dark theme"}><svg viewBox="0 0 16 16" aria-hidden="true">${dark ? html`<circle cx="8" cy="8" r="3" /><path d="M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M12.6 3.4l-1.1 1.1M4.5 11.5l-1.1 1.1" />` : html`<path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z" />`}</svg></button>
      <button class="plain icon keys" onClick=${() => setHelp(true)} aria-label="Keys"><kbd>?</kbd></button>
    </header>
    <${Findings} at=${at} />
    <main id="main" tabindex="-1">${children}</main>
    <${Messages} />
    ${help && html`<${Dialog} title="Keys" onClose=${() => setHelp(false)}><dl class="key-list">${KEYS.map(([key, what]) => html`<div><dt>${key.split(" ").map((each) => (each === "then" ? " then " : html`<kbd>${each}</kbd> `))}</dt><dd>${what}</dd></div>`)}</dl>
      <div class="buttons"><button autofocus onClick=${() => setHelp(false)}>Close</button></div><//>`}`;
}
