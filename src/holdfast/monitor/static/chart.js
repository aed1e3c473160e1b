// Runs over time: a bar for each stretch, its parts by status.
import { html, useEffect, useState } from "./html.js";
import { get } from "./api.js";
import { clock, length } from "./format.js";
import { STATES } from "./parts.js";

const RANGES = /** @type {[string, number][]} */ ([["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800]]);
const ORDER = ["FAILURE", "STUCK", "CANCELLED", "RETRY", "PAUSED", "PENDING", "WAITING", "RUNNING", "SUCCESS"];
const WIDTH = 600;
const HEIGHT = 64;

/** @param {{filter: string, version: string}} props */
export function OverTime({ filter, version }) {
  const [seconds, setSeconds] = useState(Number(localStorage.getItem("holdfast-range")) || 3600);
  const [found, setFound] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let over = false;
    get("counts/time", { q: filter, seconds }).then((answer) => !over && setFound(answer), () => {});
    return () => { over = true; };
  }, [filter, version, seconds]);
  /** @param {number} to */
  function choose(to) {
    setSeconds(to);
    localStorage.setItem("holdfast-range", String(to));
  }
  const bars = /** @type {Record<string, number>[]} */ (found?.bars ?? []);
  const sums = bars.map((bar) => Object.values(bar).reduce((sum, n) => sum + n, 0));
  const most = Math.max(1, ...sums);
  const total = sums.reduce((sum, n) => sum + n, 0);
  const failed = bars.reduce((sum, bar) => sum + (bar.FAILURE ?? 0), 0);
  const each = WIDTH / Math.max(1, bars.length);
  const range = RANGES.find(([, n]) => n === seconds)?.[0] ?? "";
  return html`<section class="chart card" aria-label="Runs over time">
    <header><span class="soft">Started in the last ${range}: <b>${total.toLocaleString("en")}${found?.capped ? " newest" : ""}</b>${failed > 0 && html`, <span class="bad-text">${failed.toLocaleString("en")} failed</span>`}</span><span class="spacer"></span>
      <span class="ranges" role="group" aria-label="How long back">${RANGES.map(([word, n]) => html`<button class="plain small" aria-pressed=${n === seconds} onClick=${() => choose(n)}>${word}</button>`)}</span></header>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${`${total} runs, ${failed} of them failed`}>
      ${bars.map((bar, i) => {
        let y = HEIGHT;
        const at = new Date(Date.parse(found.since) + i * found.width * 1000).toISOString();
        const words = `${clock(at)}, ${length(found.width)}: ${ORDER.filter((status) => bar[status]).map((status) => `${bar[status]} ${STATES[status].word.toLowerCase()}`).join(", ") || "none"}`;
        return html`<g key=${i}><title>${words}</title><rect class="hit" x=${i * each} y="0" width=${each} height=${HEIGHT} />
          ${[...ORDER].reverse().filter((status) => bar[status]).map((status) => {
            const height = Math.max(1.5, (bar[status] / most) * (HEIGHT - 4));
            y -= height;
            return html`<rect class=${`part ${STATES[status].tone}`} x=${i * each + 0.8} y=${Math.max(0, y)} width=${Math.max(1, each - 1.6)} height=${height} />`;
          })}</g>`;
      })}
    </svg>
    ${found && html`<footer class="faint num"><span>${clock(found.since)}</span><span class="spacer"></span><span>now</span></footer>`}
  </section>`;
}
