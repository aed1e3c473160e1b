// Times, lengths and values as people read them. Pure: no page, no clock of its own.
import { parse, stringify } from "./exact.js";

/** @param {number | null | undefined} seconds */
export function length(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, seconds);
  if (s < 0.001) return "<1 ms";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  const whole = Math.floor(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(whole / 86400)} d ${String(Math.floor((whole % 86400) / 3600)).padStart(2, "0")} h`;
}

/** How long ago, in one unit.
 * @param {string | null} iso @param {number} now milliseconds */
export function ago(iso, now) {
  if (!iso) return "";
  const s = (now - Date.parse(iso)) / 1000;
  const far = Math.abs(s);
  if (far < 1.5) return "just now";
  const [n, unit] =
    far < 60 ? [Math.round(far), "s"] : far < 3600 ? [Math.floor(far / 60), "min"]
    : far < 86400 ? [Math.floor(far / 3600), "h"] : [Math.floor(far / 86400), "d"];
  return s >= 0 ? `${n} ${unit} ago` : `in ${n} ${unit}`;
}

/** @param {string | null | undefined} iso */
export function clock(iso) {
  if (!iso) return "";
  const t = new Date(iso);
  const time = t.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return t.toDateString() === new Date().toDateString() ? time : `${t.toLocaleDateString("sv")} ${time}`;
}

/** With milliseconds. @param {string | null | undefined} iso */
export function precise(iso) {
  if (!iso) return "";
  return `${clock(iso)}.${String(new Date(iso).getMilliseconds()).padStart(3, "0")}`;
}

/** A sentence of the server's, whose moments are marks, in this zone and as of now. @param {string} text @param {number} now */
export function spoken(text, now) {
  return text.replace(/⟦(until|ago|for|in) (\d{1,18})⟧/g, (mark, kind, us) => {
    const at = Number(us) / 1000;
    if (Number.isNaN(new Date(at).getTime())) return mark; // what users write may look like one
    const iso = new Date(at).toISOString();
    if (kind === "ago") return ago(iso, now);
    if (kind === "until") return `${clock(iso)} (${at > now ? `in ${length((at - now) / 1000)}` : "due"})`;
    return length(Math.abs(at - now) / 1000);
  });
}

/** An id that nobody chose is cut to its first part. @param {string} id */
export function shortId(id) {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/.test(id) ? id.slice(0, 8) + (id.length > 36 ? "…" + id.slice(36) : "") : id;
}

/** A call as it was written. @param {any} call */
export function callText(call) {
  if (!call || typeof call !== "object" || Array.isArray(call) || !("args" in call || "kwargs" in call)) return "";
  const parts = (call.args ?? []).map((/** @type {any} */ v) => stringify(v));
  for (const [key, value] of Object.entries(call.kwargs ?? {})) parts.push(`${key}=${stringify(value)}`);
  return `(${parts.join(", ")})`;
}

/** @param {string} text @param {number} width */
export function cut(text, width) {
  return text.length <= width ? text : text.slice(0, width - 1) + "…";
}

/** JSON if it reads as such, else text: as the command reads a payload. @param {string} text */
export function payloadOf(text) {
  if (text.trim() === "") return null;
  try {
    return parse(text);
  } catch {
    return text;
  }
}

/** What a filter says of statuses, put in or taken out. @param {string} filter @param {string} status */
export function toggleStatus(filter, status) {
  const terms = filter.match(/(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g) ?? [];
  const others = terms.filter((term) => !term.startsWith("status:"));
  const chosen = statusesOf(filter);
  if (chosen.length === 1 && chosen[0] === status) return others.join(" ");
  return [`status:${status.toLowerCase()}`, ...others].join(" ");
}

/** The statuses that a filter names. @param {string} filter */
export function statusesOf(filter) {
  const said = /** @type {Record<string, string>} */ ({ FAILED: "FAILURE", SUCCEEDED: "SUCCESS", DONE: "SUCCESS", SLEEPING: "WAITING" });
  const terms = filter.match(/(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g) ?? [];
  return terms
    .filter((term) => term.startsWith("status:"))
    .flatMap((term) => term.slice(7).toUpperCase().split(","))
    .map((word) => said[word] ?? word);
}
