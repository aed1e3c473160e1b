// Which page is shown: its address says it.
import { html, render } from "./html.js";
import { link } from "./api.js";
import { Empty } from "./parts.js";
import { decoded, path, query } from "./router.js";
import { Failures } from "./failures.js";
import { Import } from "./importing.js";
import { Invocation, Invocations } from "./invocations.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Timeline } from "./timeline.js";
import { Hooks, Schedules, Workers, Workflows } from "./app_pages.js";
import { Shell } from "./shell.js";

const RUNS = "workflows/runs";
/** @type {Record<string, [string, any]>} */
const PAGES = { [RUNS]: ["Runs", Runs], "workflows/": ["Workflows", Workflows], workers: ["Workers", Workers], schedules: ["Schedules", Schedules], hooks: ["Waiting hooks", Hooks], failures: ["Failures", Failures], invocations: ["Steps", Invocations], timeline: ["Timeline", Timeline], import: ["Import", Import] };

function Page() {
  const at = path.value;
  if (at.startsWith(`${RUNS}/`)) {
    const id = decoded(at.slice(RUNS.length + 1)) || (query.value.get("id") ?? "");
    return html`<${Shell}><${Run} key=${id} id=${id} /><//>`;
  }
  if (at.startsWith("invocations/")) {
    const named = at.slice("invocations/".length);
    const [id, cmd] = named ? named.split("/").map(decoded) : [query.value.get("id") ?? "", query.value.get("cmd") ?? ""];
    return html`<${Shell}><${Invocation} key=${id + cmd} run=${id} cmd=${cmd ?? ""} /><//>`;
  }
  const found = PAGES[at];
  document.title = found ? `${found[0]} · Holdfast` : "Holdfast";
  return html`<${Shell}>${found ? html`<${found[1]} key=${at} />` : html`<${Empty} title="There is no such page"><a href=${link(RUNS)}>All runs</a><//>`}<//>`;
}

const root = /** @type {HTMLElement} */ (document.getElementById("root"));
root.replaceChildren();
render(html`<${Page} />`, root);
