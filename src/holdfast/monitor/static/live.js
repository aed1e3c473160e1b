// A resource on the page: read, shown, and read again when the server says that it has changed.
import { useEffect, useRef, useState } from "./html.js";
import { follow, get } from "./api.js";

/** @template T
 * @param {string} path @param {Record<string, string | number | null | undefined>} query
 * @param {Record<string, string | number | null | undefined>} what
 * @returns {{data: any, error: any, again: () => void}} */
export function useLive(path, query, what) {
  const key = JSON.stringify([path, query, what]);
  const [state, setState] = useState({ key, data: /** @type {any} */ (null), error: /** @type {any} */ (null) });
  const again = useRef(() => {});
  useEffect(() => {
    let over = false;
    let stop = () => {};
    let reading = false;
    let anew = false;
    let following = false;
    async function load() {
      if (reading) { anew = true; return; }
      reading = true;
      try {
        const data = await get(path, query);
        if (over) return;
        setState({ key, data, error: null });
        if (!following) {
          following = true;
          stop = follow(what, data.version, load, () => {
            following = false; // reading again says what is wrong
            setTimeout(() => { if (!over) load(); }, 2000);
          });
        }
      } catch (error) {
        if (over) return;
        setState((old) => ({ key, data: old.key === key ? old.data : null, error }));
        const status = /** @type {any} */ (error).status;
        if (status === 0 || status === 503) setTimeout(() => { if (!over) load(); }, 2000);
      } finally {
        reading = false;
        if (anew && !over) { anew = false; load(); }
      }
    }
    again.current = load;
    load();
    return () => { over = true; stop(); };
  }, [key]);
  const fresh = state.key === key;
  return { data: fresh ? state.data : null, error: fresh ? state.error : null, again: () => again.current() };
}
