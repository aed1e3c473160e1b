// Failures that are alike, as one row: how many, since when, and what to do about all of them.
import { html, useState } from "./html.js";
import { link } from "./api.js";
import { BulkDialog } from "./bulk.js";
import { FilterBox } from "./filter_box.js";
import { cut } from "./format.js";
import { useLive } from "./live.js";
import { Copy, Empty, Loading, Moment, RunLink, Trouble } from "./parts.js";
import { query } from "./router.js";
import { about } from "./shell.js";

export function Failures() {
  const filter = query.value.get("q") ?? "";
  const { data, error, again } = useLive("failures", { q: filter }, { what: "runs", q: "status:failed,stuck" });
  const [open, setOpen] = useState("");
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const may = about.value?.may.includes("retry");
  return html`<header class="head"><h1>Failures</h1>${data && html`<p class="soft">${data.count.toLocaleString("en")} ${data.count === 1 ? "run" : "runs"} that failed or ${data.count === 1 ? "is" : "are"} stuck${data.all ? "" : " (the newest)"}, by what went wrong.</p>`}</header>
    <${FilterBox} page="failures" filter=${filter} placeholder="workflow:order* started:<1d" />
    <${Trouble} error=${error} />${!data && !error && html`<${Loading} />`}
    ${data && (data.groups.length ? html`<div class="groups">${data.groups.map((/** @type {any} */ group) => html`<article key=${group.fingerprint} class="group card bad">
      <div class="group-head"><div class="group-count num">${group.count.toLocaleString("en")}<span>${group.count === 1 ? "run" : "runs"}</span></div>
        <div class="group-text"><h2 class="mono">${group.type}</h2><p class="mono message">${cut(group.message, 300)}</p>
          <p class="soft">${group.where && html`<span class="mono">${group.where}</span> · `}${Object.entries(group.workflows).map(([name, n], i) => html`${i ? ", " : ""}<a href=${link(`workflows/?name=${encodeURIComponent(name)}`)}>${name}</a>${Object.keys(group.workflows).length > 1 ? ` × ${n}` : ""}`)} · last <${Moment} at=${group.last_at} />${group.first_at !== group.last_at && html`, first <${Moment} at=${group.first_at} />`}</p></div>
        <div class="group-acts">${may && html`<button class="primary" onClick=${() => setAsked(group)}>Retry ${group.count === 1 ? "it" : `all ${group.count.toLocaleString("en")}`}…</button>`}
          <button class="plain" aria-expanded=${open === group.fingerprint} onClick=${() => setOpen(open === group.fingerprint ? "" : group.fingerprint)}>${open === group.fingerprint ? "Less" : "More"}</button></div></div>
      ${open === group.fingerprint && html`<div class="group-more"><h3>Runs</h3><p class="run-links">${group.runs.map((/** @type {string} */ id) => html`<${RunLink} key=${id} id=${id} /> `)}${group.count > group.runs.length && html`<span class="faint">and ${group.count - group.runs.length} more</span>`}</p>
        ${group.traceback && html`<h3>Traceback of the last one</h3><pre tabindex="0">${group.traceback}</pre><${Copy} text=${group.traceback} />`}</div>`}
    </article>`)}</div>` : html`<${Empty} title="Nothing has failed">${filter ? "Nothing that fits this filter." : "Runs that fail, or are stuck, show up here."}<//>`)}
    ${asked && html`<${BulkDialog} name="retry" ids=${null} filter=${filter} fingerprint=${asked.fingerprint} count=${asked.count} close=${() => setAsked(null)} done=${() => { setAsked(null); again(); }} />`}`;
}
