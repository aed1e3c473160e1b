// Talking to the server: reading, acting, and being told of changes.
import { signal } from "./html.js";

const base = new URL(".", document.baseURI);

/** How far the server's clock is ahead of this one, in milliseconds. */
let skew = 0;
/** Counts up each second, for what shows a length of time. */
export const tick = signal(0);
/** "live", "connecting" or "lost". */
export const connection = signal("connecting");

setInterval(() => { if (!document.hidden) tick.value++; }, 1000);

/** The server's time, in milliseconds. */
export function now() {
  return Date.now() + skew;
}

export class Failure extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
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
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Failure(answer.status, body.error ?? `the server answered ${answer.status}`);
  if (body.now) skew = Date.parse(body.now) - Date.now();
  return body;
}

/** @param {string} path @param {Query} [query] @returns {Promise<any>} */
export async function get(path, query) {
  try {
    return await read(await fetch(address(`api/${path}`, query), { credentials: "same-origin" }));
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
export const act = (name, order) => post(`api/actions/${name}`, name, JSON.stringify(order));

/** One batch of many runs. @param {string} name @param {Record<string, unknown>} order */
export const actOnMany = (name, order) => post(`api/bulk/${name}`, name, JSON.stringify(order));

/** A run that was exported. @param {string} text */
export const inspect = (text) => post("api/inspect", "inspect", text);

/** Call `changed` whenever what is looked at has another version than `seen`, and `ended` if the server wants no more of
 * that; the result ends it from this side. A connection that breaks is made again by the browser, and misses nothing.
 * @param {Query} what @param {string} seen
 * @param {() => void} changed @param {() => void} ended */
export function follow(what, seen, changed, ended) {
  const stream = new EventSource(address("api/changes", { ...what, seen }));
  connection.value = "connecting";
  stream.onopen = () => { connection.value = "live"; };
  stream.addEventListener("change", () => changed());
  stream.onerror = () => {
    connection.value = "lost";
    if (stream.readyState === EventSource.CLOSED) ended();
  };
  return () => stream.close();
}

/** @param {string} path */
export function link(path) {
  return base.pathname + path;
}

/** The page's path below the base. */
export function here() {
  return location.pathname.slice(base.pathname.length);
}
