// One place for the libraries: everything else imports from here.
import { h, render } from "./vendor/preact.js";
import { useEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import { signal } from "./vendor/preact-signals.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, signal, useEffect, useMemo, useRef, useState };
