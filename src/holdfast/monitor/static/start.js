// A run that is started here: a form of the workflow's arguments, or JSON where no form can be made of them.
import { act, runPage } from "./api.js";
import { Exact, parse, stringify } from "./exact.js";
import { initial, SchemaForm } from "./form.js";
import { html, useMemo, useState } from "./html.js";
import { Dialog, tell } from "./parts.js";
import { go } from "./router.js";

/** @param {{name: string, start: {known: boolean, schema: any}, close: () => void}} props */
export function StartDialog({ name, start, close }) {
  const { schema } = start;
  const first = useMemo(() => schema && initial(schema, schema), [schema]);
  const [given, setGiven] = useState(/** @type {any} */ (first));
  const [text, setText] = useState("");
  const [id, setId] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {{field: string, text: string} | null} */ (null));
  const fields = schema ? Object.keys(schema.properties) : [];

  /** What was left as it is and has a default is left to the code. */
  function called() {
    if (schema) return Object.fromEntries(fields.filter((each) => schema.required.includes(each) || stringify(given[each]) !== stringify(first[each])).map((each) => [each, given[each]]));
    const found = text.trim() ? parse(text) : [];
    if (found === null || typeof found !== "object" || found instanceof Exact) throw new Error("give a list of arguments, or an object of them by name");
    return found;
  }

  /** @param {any} event */
  async function submit(event) {
    event.preventDefault();
    let input;
    try {
      input = called();
    } catch (error) {
      setProblem({ field: "", text: `The arguments can't be read: ${/** @type {Error} */ (error).message}` });
      return;
    }
    setBusy(true);
    setProblem(null);
    try {
      const made = await act("start", { workflow: name, input, ...(id ? { id } : {}) });
      tell("The run was started.");
      close();
      go(runPage(made.id));
    } catch (error) {
      const failure = /** @type {import("./api.js").Failure} */ (error);
      setProblem({ field: failure.field, text: failure.message });
      setBusy(false);
    }
  }

  const elsewhere = problem && problem.field !== "id" && !fields.includes(problem.field);
  return html`<${Dialog} title=${`Start a run of ${name}`} onClose=${close}><form onSubmit=${submit}>
    ${!start.known && html`<p class="soft">This monitor doesn't have its code: the worker that takes the run up checks the arguments.</p>`}
    ${schema ? html`${fields.length > 0 ? html`<${SchemaForm} schema=${schema} change=${setGiven} problem=${problem} />` : html`<p class="soft">It takes no arguments.</p>`}`
    : html`<label>Arguments <span class="faint">(JSON: a list, or an object of them by name; may be left out)</span><textarea rows="5" class="mono" spellcheck=${false} value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} placeholder='{"order": 17}' autofocus></textarea></label>`}
    <label>Id of the run <span class="faint">(may be left out)</span><input type="text" class="mono" spellcheck=${false} value=${id} onInput=${(/** @type {any} */ e) => setId(e.target.value.trim())} />${problem?.field === "id" && html`<span class="bad-text" role="alert">${problem.text}</span>`}</label>
    ${elsewhere && html`<p class="trouble" role="alert">${problem.text}</p>`}
    <div class="buttons"><button type="button" class="plain" onClick=${close}>Leave it</button><button type="submit" class="primary" disabled=${busy}>${busy ? "…" : "Start it"}</button></div>
  </form><//>`;
}
