// Talking to the server: reading, acting, and being told of changes.
import { parse, stringify } from "./exact.js";
import { signal } from "./html.js";

const base = new URL(".", document.baseURI);
/** Milliseconds after which a question is taken for lost, and asked again. */
const ANSWERED = 30_000;

/** How far the server's clock is ahead of this one, in milliseconds. */
let skew = 0;
/** Counts up each second, for what shows a length of time. */
export const tick = signal(0);
/** "live", "connecting" or "lost". */
export const connection = signal("connecting");
/** Whether what was asked for last could not be read from the store. */
export const unreadable = signal(false);

setInterval(() => { if (!document.hidden) tick.value++; }, 1000);

/** The server's time, in milliseconds. */
export function now() {
  return Date.now() + skew;
}

export class Failure extends Error {
  /** @param {number} status @param {string} message @param {string} [field] which part of what was sent is wrong */
  constructor(status, message, field = "") {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** @typedef {Record<string, string | number | string[] | null | undefined>} Query */

/** @param {string} path @param {Query} [query] */
function address(path, query = {}) {
  const url = new URL(path, base);
  for (const [key, value] of Object.entries(query)) {
    if (Array.isArray(value)) value.forEach((each) => url.searchParams.append(key, each));
    else if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, String(value));
  }
  return url;
}

/** @param {Response} answer */
async function read(answer) {
  const body = await answer.text().then(parse).catch(() => ({ error: `the server answered ${answer.status}` }));
  if (answer.ok || answer.status === 503) unreadable.value = !answer.ok;
  if (!answer.ok) throw new Failure(answer.status, body.error ?? `the server answered ${answer.status}`, body.field);
  if (body.now && !body.imported) skew = Date.parse(body.now) - Date.now();
  return body;
}

/** @param {string} path @param {Query} [query] @returns {Promise<any>} */
export async function get(path, query) {
  try {
    return await read(await fetch(address(`api/${path}`, query), { credentials: "same-origin", signal: AbortSignal.timeout(ANSWERED) }));
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure(0, "The monitor can't be reached. It is tried again on its own.");
  }
}

/** @param {string} path @param {string} name @param {string} body @returns {Promise<any>} */
async function post(path, name, body) {
  const headers = { "content-type": "application/json", "x-holdfast-action": name };
  try {
    return await read(await fetch(address(path), { method: "POST", headers, body, credentials: "same-origin" }));
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure(0, "The monitor can't be reached. Whether it was done can be seen once it is back.");
  }
}

/** @param {string} name @param {Record<string, unknown>} order */
export const act = (name, order) => post(`api/actions/${name}`, name, stringify(order));

/** One batch of many runs. @param {string} name @param {Record<string, unknown>} order */
export const actOnMany = (name, order) => post(`api/bulk/${name}`, name, stringify(order));

/** A run that was exported. @param {string} text */
export const inspect = (text) => post("api/inspect", "inspect", text);

/** Call `changed` whenever what is looked at has another version than `seen`, and `ended` if the server wants no more of
 * that; the result ends it from this side. A connection that breaks is made again by the browser, and misses nothing.
 * While nobody can see the page there is none: browsers have six for a host, and tabs share them.
 * @param {Query} what @param {string} seen
 * @param {() => void} changed @param {() => void} ended */
export function follow(what, seen, changed, ended) {
  /** @type {EventSource | null} */
  let stream = null;
  let last = seen;
  function open() {
    const opened = stream = new EventSource(address("api/changes", { ...what, seen: last }));
    connection.value = "connecting";
    opened.onopen = () => { connection.value = "live"; };
    opened.addEventListener("change", (event) => {
      last = event.lastEventId;
      changed();
    });
    opened.onerror = () => {
      connection.value = "lost";
      if (opened.readyState !== EventSource.CLOSED) return;
      stop();
      ended();
    };
  }
  function close() {
    stream?.close();
    stream = null;
  }
  function turn() {
    if (document.hidden) close();
    else if (!stream) open();
  }
  function stop() {
    document.removeEventListener("visibilitychange", turn);
    close();
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return stop;
}

/** @param {string} path */
export function link(path) {
  return base.pathname + path;
}

/** The page of a run. An id of dots is no part of a path: browsers take it for the folder above, however it is written.
 * @param {string} id @param {Record<string, string>} [query] */
export function runPage(id, query = {}) {
  const dots = id === "." || id === "..";
  const text = new URLSearchParams(dots ? { id, ...query } : query).toString();
  return link(`workflows/runs/${dots ? "" : encodeURIComponent(id)}`) + (text ? `?${text}` : "");
}

/** The page of a step. @param {string} run @param {string} cmd */
export function stepPage(run, cmd) {
  if (run === "." || run === "..") return link(`invocations/?${new URLSearchParams({ id: run, cmd })}`);
  return link(`invocations/${encodeURIComponent(run)}/${encodeURIComponent(cmd)}`);
}

/** The page's path below the base. */
export function here() {
  return location.pathname.slice(base.pathname.length);
}
