// A form from JSON Schema: fields for plain values, JSON for all else.
import { parse, stringify } from "./exact.js";
import { html, useEffect, useState } from "./html.js";

/** @param {any} schema @param {any} root @returns {any} */
function resolved(schema, root) {
  const found = typeof schema?.$ref === "string" ? schema.$ref.replace(/^#\//, "").split("/").reduce((/** @type {any} */ at, /** @type {string} */ key) => at?.[key], root) : schema;
  if (found !== schema && found && "default" in schema) return resolved({ ...found, default: schema.default }, root);
  const options = found?.anyOf ?? found?.oneOf;
  if (!options) return found ?? {};
  const others = options.filter((/** @type {any} */ each) => each.type !== "null");
  return others.length === 1 ? { ...resolved(others[0], root), default: found.default ?? null, nullable: true } : found;
}

/** What a form begins with. A number that has a box of its own has to be written there.
 * @param {any} schema @param {any} root @param {number} [depth] @returns {any} */
export function initial(schema, root, depth = 0) {
  const found = resolved(schema, root);
  if ("default" in found) return found.default;
  if (found.enum) return found.enum[0];
  if (found.type === "object" && found.properties) return Object.fromEntries(Object.entries(found.properties).map(([name, each]) => [name, initial(each, root, depth + 1)]));
  return found.type === "boolean" ? false : found.type === "string" ? "" : found.type === "array" ? [] : (found.type === "integer" || found.type === "number") && depth > 1 ? 0 : null;
}

/** A browser lets people write what isn't JSON, 1. or 007. @param {string} text */
function numberOf(text) {
  if (text === "") return null;
  try {
    return parse(text);
  } catch {
    return Number(text);
  }
}

/** `problem` is told at the field of that name. @param {{schema: any, change: (value: any) => void, problem?: {field: string, text: string} | null}} props */
export function SchemaForm({ schema, change, problem }) {
  const [value, setValue] = useState(() => initial(schema, schema));
  useEffect(() => change(value), [value]);
  const top = resolved(schema, schema);
  const fields = top.type === "object" && top.properties ? Object.entries(top.properties) : null;
  if (!fields) return html`<${Field} name="Answer" schema=${schema} root=${schema} value=${value} change=${setValue} required first />`;
  return html`<div>${fields.map(([name, each], i) => html`<${Field} key=${name} name=${name} schema=${each} root=${schema} value=${value?.[name]} change=${(/** @type {any} */ to) => setValue((/** @type {any} */ old) => ({ ...old, [name]: to }))} required=${(top.required ?? []).includes(name)} first=${i === 0} wrong=${problem?.field === name ? problem.text : ""} />`)}</div>`;
}

/** @param {{name: string, schema: any, root: any, value: any, change: (value: any) => void, required?: boolean, first?: boolean, wrong?: string}} props */
function Field({ name, schema, root, value, change, required, first, wrong }) {
  const found = resolved(schema, root);
  const [problem, setProblem] = useState("");
  const [text, setText] = useState(value === undefined || value === null ? "" : stringify(value));
  const label = html`${name}${!required && html` <span class="faint">(may be left out)</span>`}${found.format && html` <span class="faint">(${found.format})</span>`}${found.description && html` <span class="faint">${found.description}</span>`}`;
  const told = wrong && html`<span class="bad-text" role="alert">${wrong}</span>`;
  if (found.enum) return html`<label>${label}<select value=${value} onChange=${(/** @type {any} */ e) => change(found.enum.find((/** @type {any} */ each) => String(each) === e.target.value))}>${found.enum.map((/** @type {any} */ each) => html`<option value=${String(each)}>${String(each)}</option>`)}</select>${told}</label>`;
  if (found.type === "boolean") return html`<label class="tick-box"><input type="checkbox" checked=${Boolean(value)} autofocus=${first} onChange=${(/** @type {any} */ e) => change(e.target.checked)} /> ${label}${told}</label>`;
  // The box keeps what is typed: 1. on the way to 1.05 is no number yet.
  if (found.type === "integer" || found.type === "number") return html`<label>${label}<input type="number" step=${found.type === "integer" ? 1 : "any"} required=${required && !found.nullable} autofocus=${first} value=${text} onInput=${(/** @type {any} */ e) => { setText(e.target.value); change(numberOf(e.target.value)); }} />${told}</label>`;
  if (found.type === "string") return html`<label>${label}<input type="text" autofocus=${first} value=${value ?? ""} onInput=${(/** @type {any} */ e) => change(e.target.value === "" && found.nullable ? null : e.target.value)} />${told}</label>`;
  return html`<label>${label} <span class="faint">(JSON)</span><textarea rows="3" class="mono" spellcheck=${false} autofocus=${first} value=${text} onInput=${(/** @type {any} */ e) => read(e.target)}></textarea>${problem && html`<span class="bad-text">${problem}</span>`}${told}</label>`;

  /** @param {HTMLTextAreaElement} box */
  function read(box) {
    setText(box.value);
    try {
      change(parse(box.value || "null"));
      setProblem("");
      box.setCustomValidity("");
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      box.setCustomValidity("This isn't JSON."); // the form can't be sent like this
    }
  }
}
