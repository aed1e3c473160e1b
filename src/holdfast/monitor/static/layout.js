// The waterfall's arithmetic. Pure: lanes in, positions out.

/** @typedef {{kind: string, start: number, end: number | null, until: number | null, attempt: number, worker: string, outcome: string}} Span */
/** @typedef {{kind: string, name: string, key: string, cmd: string, state: string, part_of: string, undoes: string, child_id: string, spans: Span[], states: Record<string, number>, members: Lane[], at: number}} Lane */
/** @typedef {{lane: Lane, count: number, left: number}} Row */

const ACTIVE = new Set(["executing", "queued", "child", "group", "reused"]);
const IDLE_WIDTH = 0.07;

/** Times to places between 0 and 1. Stretches in which nothing executes can be folded to a short one; of a part that was
 * chosen, what lies outside is left out. `time` is the way back.
 * @param {Lane[]} lanes @param {number} start @param {number} end @param {boolean} fold @param {[number, number] | null} [zoom] */
export function scaleOf(lanes, start, end, fold, zoom = null) {
  if (zoom) {
    const [from, to] = zoom;
    const width = Math.max(1, to - from);
    return { place: (/** @type {number} */ t) => Math.min(1, Math.max(0, (t - from) / width)), time: (/** @type {number} */ x) => from + x * width, breaks: [] };
  }
  const total = Math.max(1, end - start);
  const idle = fold ? idleOf(lanes, start, end) : [];
  const awake = total - idle.reduce((sum, [a, b]) => sum + b - a, 0);
  const each = idle.length ? Math.min(IDLE_WIDTH, 0.5 / idle.length) : 0;
  const rest = 1 - each * idle.length;
  /** @param {number} t */
  function place(t) {
    let done = 0;
    let folded = 0;
    for (const [a, b] of idle) {
      if (t <= a) break;
      done += Math.min(t, b) - a;
      folded += each * Math.min(1, (t - a) / (b - a));
    }
    return folded + (rest * (Math.min(Math.max(t, start), end) - start - done)) / Math.max(1, awake);
  }
  /** @param {number} x */
  function time(x) {
    let low = start;
    let high = end;
    for (let i = 0; i < 50; i++) {
      const middle = (low + high) / 2;
      if (place(middle) < x) low = middle;
      else high = middle;
    }
    return low;
  }
  return { place, time, breaks: idle.map(([a, b]) => ({ from: place(a), to: place(b), us: b - a })) };
}

/** Stretches in which nothing executes, long enough to be in the way.
 * @param {Lane[]} lanes @param {number} start @param {number} end
 * @returns {[number, number][]} */
export function idleOf(lanes, start, end) {
  const busy = lanes
    .filter((lane) => lane.kind !== "run")
    .flatMap((lane) => lane.spans.filter((span) => ACTIVE.has(span.kind)).map((span) => [span.start, span.end ?? end]))
    .sort((a, b) => a[0] - b[0]);
  /** @type {[number, number][]} */
  const gaps = [];
  let at = start;
  for (const [from, to] of busy) {
    if (from > at) gaps.push([at, from]);
    at = Math.max(at, to);
  }
  if (end > at) gaps.push([at, end]);
  const free = gaps.reduce((sum, [a, b]) => sum + b - a, 0);
  const worked = Math.max(1, end - start - free);
  return gaps.filter(([a, b]) => b - a > worked * 0.5).slice(0, 8);
}

/** Rows to draw: of a lane that stands for many, once it is opened, each of them as far as they are known. `more` are those
 * that were asked for since, by the lane's command.
 * @param {Lane[]} lanes @param {Set<string>} opened @param {Map<string, Lane[]>} more
 * @returns {Row[]} */
export function rowsOf(lanes, opened, more) {
  /** @type {Row[]} */
  const rows = [];
  for (const lane of lanes) {
    const count = countOf(lane);
    rows.push({ lane, count, left: 0 });
    if (!count || !opened.has(lane.cmd)) continue;
    const inside = [...lane.members, ...(more.get(lane.cmd) ?? [])];
    for (const each of inside) rows.push({ lane: each, count: 0, left: 0 });
    if (inside.length < count) rows.push({ lane, count, left: count - inside.length });
  }
  return rows;
}

/** How many steps a lane stands for; 0 if it is one's own. @param {Lane} lane */
export function countOf(lane) {
  return Object.values(lane.states ?? {}).reduce((sum, n) => sum + n, 0);
}

/** @type {Record<string, string>} */
const COUNTED = { SUCCESS: "done", STARTED: "running", FAILURE: "failed", PENDING: "queued", RETRY: "retrying", CANCELLED: "cancelled", SKIPPED: "skipped", WAITING: "waiting", "": "to come" };

/** "497 done, 2 running, 1 failed" @param {Record<string, number>} counts */
export function countsText(counts) {
  return Object.entries(counts).map(([state, n]) => `${n.toLocaleString("en")} ${COUNTED[state] ?? state.toLowerCase()}`).join(", ");
}

/** Round marks for an axis. @param {number} us @param {number} count @returns {number[]} */
export function ticksOf(us, count) {
  const steps = [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 15e6, 3e7, 6e7, 12e7, 3e8, 6e8, 18e8, 36e8, 72e8, 216e8, 432e8, 864e8, 1728e8, 6048e8];
  const step = steps.find((each) => us / each <= count) ?? Math.ceil(us / count / 864e8) * 864e8;
  const found = [];
  for (let t = 0; t <= us; t += step) found.push(t);
  return found;
}
