// What keeps runs from going on, on every page: what `holdfast doctor` says.
import { html, useEffect, useState } from "./html.js";
import { get, link } from "./api.js";
import { cut } from "./format.js";

const AGAIN = 10_000;
const LONG = 180;
/** Where more is told. @type {Record<string, string>} */
const PLACES = { workers: "workers", queues: "workers", stuck: "workflows/runs?q=status:stuck", unknown: "workers", overdue: "workers", schedules: "schedules" };

/** @param {string} text */
function sentence(text) {
  const whole = text[0].toUpperCase() + text.slice(1);
  return whole.length > LONG ? cut(whole, LONG) : `${whole}.`;
}

/** @param {{at: string}} props */
export function Findings({ at }) {
  const [found, setFound] = useState({ findings: /** @type {any[]} */ ([]), more: 0 });
  useEffect(() => {
    let over = false;
    function look() {
      if (!document.hidden) get("findings").then((answer) => !over && setFound(answer)).catch(() => {});
    }
    look();
    const timer = setInterval(look, AGAIN);
    document.addEventListener("visibilitychange", look);
    return () => { over = true; clearInterval(timer); document.removeEventListener("visibilitychange", look); };
  }, [at]);
  if (!found.findings.length) return null;
  return html`<section class="findings" aria-label="What keeps runs from going on"><ul>${found.findings.map((each) => html`<li key=${each.text}>
    <b>${sentence(each.text)}</b> ${each.remedy && (each.command ? html`${sentence(each.remedy).slice(0, -1)}: <code>${each.command}</code>` : sentence(each.remedy))} <a href=${link(PLACES[each.check] ?? "workers")}>Look</a></li>`)}
    ${found.more > 0 && html`<li>${found.more} more: <code>holdfast -A module doctor</code></li>`}</ul></section>`;
}
