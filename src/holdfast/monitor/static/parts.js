// What all pages are made of: states, values, dialogs, messages.
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { stringify } from "./exact.js";
import { ago, clock, precise, shortId } from "./format.js";
import { now, runPage, tick } from "./api.js";

/** @type {Record<string, {word: string, tone: string, path: string}>} */
export const STATES = {
  SUCCESS: { word: "Success", tone: "good", path: "M4.8 8.3l2.2 2.2 4.2-4.6" },
  FAILURE: { word: "Failed", tone: "bad", path: "M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8" },
  RUNNING: { word: "Running", tone: "busy", path: "M6.6 5.3v5.4L11 8z" },
  STARTED: { word: "Running", tone: "busy", path: "M6.6 5.3v5.4L11 8z" },
  WAITING: { word: "Waiting", tone: "wait", path: "M8 4.8V8l2.2 1.4" },
  PENDING: { word: "Pending", tone: "calm", path: "M5.2 8h.01M8 8h.01M10.8 8h.01" },
  RECEIVED: { word: "Received", tone: "calm", path: "M5.2 8h.01M8 8h.01M10.8 8h.01" },
  RETRY: { word: "Retry", tone: "warn", path: "M10.9 6.4A3.3 3.3 0 1 0 11.2 9M11 4.6v2h-2" },
  PAUSED: { word: "Paused", tone: "held", path: "M6.4 5.6v4.8M9.6 5.6v4.8" },
  STUCK: { word: "Stuck", tone: "stuck", path: "M8 4.6v4M8 11.2h.01" },
  CANCELLED: { word: "Cancelled", tone: "calm", path: "M5.2 10.8l5.6-5.6" },
  SKIPPED: { word: "Skipped", tone: "calm", path: "M5.4 5.4L8 8l-2.6 2.6M8.6 5.4L11.2 8l-2.6 2.6" },
};

/** @param {{state: string, big?: boolean, quiet?: boolean}} props */
export function State({ state, big, quiet }) {
  const look = STATES[state] ?? { word: state, tone: "calm", path: "" };
  return html`<span class=${`state ${look.tone} ${big ? "big" : ""} ${quiet ? "quiet" : ""}`} title=${quiet ? look.word : undefined}>
    <svg viewBox="0 0 16 16" aria-hidden="true" class=${look.tone === "busy" ? "turns" : ""}>
      <circle cx="8" cy="8" r="6.6" class="ring" /><path d=${look.path} />
    </svg>
    <span class=${quiet ? "unseen" : ""}>${look.word}</span>
  </span>`;
}

/** A moment: how long ago, with the exact time on hover. @param {{at: string | null}} props */
export function Moment({ at }) {
  tick.value;
  return at ? html`<time datetime=${at} title=${precise(at)}>${ago(at, now())}</time>` : html`<span class="faint">–</span>`;
}

/** @param {{id: string, full?: boolean}} props */
export function RunLink({ id, full }) {
  return html`<a class="mono" href=${runPage(id)} title=${id}>${full ? id : shortId(id)}</a>`;
}

/** Whether a text is in the clipboard. Browsers give that only to pages that came by https, or from this machine; others can
 * copy what is selected. @param {string} text */
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "unseen";
  (before?.closest("dialog") ?? document.body).append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  before?.focus({ preventScroll: true });
  return done;
}

/** @param {{text: string, label?: string}} props */
export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  async function copy() {
    if (!(await copied(text))) {
      tell("The browser doesn't let this page copy; select the text instead.", true);
      return;
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button class="plain small" onClick=${copy}>${done ? "Copied" : label}</button>`;
}

/** A value as JSON, coloured. Only ever text: nothing of it is read as markup. @param {{value: any}} props */
export function Json({ value }) {
  const text = stringify(value, 2);
  const [all, setAll] = useState(false);
  const shown = all || text.length < 20000 ? text : text.slice(0, 20000);
  const pieces = shown.split(/("(?:[^"\\]|\\.)*"(?:\s*:)?|\b(?:true|false|null)\b|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)/);
  return html`<div class="value">
    <pre tabindex="0">${pieces.map((piece, i) => {
      if (i % 2 === 0) return piece;
      const kind = piece.endsWith(":") ? "key" : piece[0] === '"' ? "text" : /^[tfn]/.test(piece) ? "word" : "number";
      return html`<span class=${`json-${kind}`}>${piece}</span>`;
    })}</pre>
    <div class="value-tools">
      ${shown.length < text.length && html`<button class="plain small" onClick=${() => setAll(true)}>Show all ${Math.round(text.length / 1024)} KB</button>`}
      <${Copy} text=${text} />
    </div>
  </div>`;
}

/** @param {{error: any}} props */
export function ErrorBox({ error }) {
  return html`<div class="error-box">
    <p class="mono strong">${error.type}: ${error.message}</p>
    ${error.traceback && html`<details><summary>Traceback</summary><pre tabindex="0">${error.traceback}</pre><${Copy} text=${error.traceback} /></details>`}
  </div>`;
}

/** @param {{error: any}} props */
export function Trouble({ error }) {
  if (!error) return null;
  const locked = error.status === 401;
  return html`<div class="trouble" role="alert"><strong>${locked ? "The monitor doesn't know your token. " : ""}</strong>${
    locked ? "There may be a new one since a restart: reload this page to give it." : error.message}</div>`;
}

/** @param {{children?: any, title: string}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><svg viewBox="0 0 48 48" aria-hidden="true"><path d="M24 8v24M13 24c0 9 5 15 11 15s11-6 11-15M17 15h14" /></svg>
    <h2>${title}</h2><p>${children}</p></div>`;
}

/** @param {{rows?: number}} props */
export function Loading({ rows = 6 }) {
  return html`<div class="loading" aria-label="Loading" aria-busy="true">${Array.from({ length: rows }, () => html`<i></i>`)}</div>`;
}

// -- messages that go by themselves

/** @type {import("./vendor/preact-signals.js").Signal<{text: string, bad: boolean}[]>} */
const messages = signal([]);

/** @param {string} text @param {boolean} [bad] */
export function tell(text, bad = false) {
  const message = { text, bad };
  messages.value = [...messages.value, message];
  setTimeout(() => { messages.value = messages.value.filter((each) => each !== message); }, bad ? 9000 : 4000);
}

export function Messages() {
  return html`<div class="messages" role="status" aria-live="polite">
    ${messages.value.map((message) => html`<div class=${message.bad ? "bad" : ""}>${message.text}</div>`)}
  </div>`;
}

// -- dialogs

/** @param {{title: string, onClose: () => void, children?: any}} props */
export function Dialog({ title, onClose, children }) {
  const element = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${element} onClose=${onClose} aria-label=${title}
    onClick=${(/** @type {any} */ e) => e.target === element.current && element.current.close()}>
    <div class="dialog"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

/** "14:02:11 (3 min ago)" @param {{at: string | null}} props */
export function When({ at }) {
  tick.value;
  return at ? html`<time datetime=${at} title=${precise(at)}>${clock(at)} <span class="faint">(${ago(at, now())})</span></time>` : "–";
}
