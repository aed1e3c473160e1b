// JSON whose numbers stay what they are: a whole number beyond 2^53 is kept as it was written.

/** In texts that stand for such numbers, and in no other: nobody can know it beforehand. */
const MARK = `${Math.random()}#`;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const PERHAPS = /\d{16}|\d[eE]\+?\d{3}/;

export class Exact {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
  toString() { return this.text; }
  toJSON() { return MARK + this.text; }
}

/** @param {string} text @returns {any} */
export function parse(text) {
  const plain = JSON.parse(text); // what isn't JSON is refused here
  if (!PERHAPS.test(text)) return plain;
  const marked = text.replace(TOKENS, (token) => (token[0] === '"' || isKept(token) ? token : `"${MARK}${token}"`));
  return JSON.parse(marked, (_key, value) => (typeof value === "string" && value.startsWith(MARK) ? new Exact(value.slice(MARK.length)) : value));
}

/** Whether a number of JavaScript is what it says. @param {string} token */
function isKept(token) {
  const value = Number(token);
  return /[.eE]/.test(token) ? Number.isFinite(value) : Number.isSafeInteger(value);
}

/** @param {unknown} value @param {number} [indent] */
export function stringify(value, indent) {
  const text = JSON.stringify(value, null, indent) ?? "null";
  return text.includes(MARK) ? text.replace(/"(?:[^"\\]|\\.)*"/g, (token) => (token.startsWith(`"${MARK}`) ? token.slice(MARK.length + 1, -1) : token)) : text;
}
