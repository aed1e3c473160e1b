// The arithmetic of lanes. Pure: spans in, rows out.

/** @typedef {{run: string, cmd: string, name: string, state: string, attempt: number, start: number, end: number | null}} WorkerSpan */

/** Rows in which no spans overlap; each goes into the first that has room. @param {WorkerSpan[]} spans @param {number} total @returns {WorkerSpan[][]} */
export function packed(spans, total) {
  /** @type {WorkerSpan[][]} */
  const rows = [];
  /** @type {number[]} */
  const ends = [];
  for (const span of spans) {
    let row = ends.findIndex((end) => end <= span.start);
    if (row < 0) {
      row = ends.length < 24 ? ends.length : ends.indexOf(Math.min(...ends));
      if (row === ends.length) rows.push([]);
    }
    rows[row].push(span);
    ends[row] = Math.max(ends[row] ?? 0, span.end ?? total);
  }
  return rows;
}

/** What is to be drawn of a row: spans between two times, and one for several that would be too thin to see.
 * @param {WorkerSpan[]} row @param {number} from @param {number} to @param {number} total @param {number} pixels */
export function thinned(row, from, to, total, pixels) {
  const least = (to - from) / pixels;
  /** @type {(WorkerSpan & {from: number, to: number, many: number})[]} */
  const found = [];
  for (const span of row) {
    const end = span.end ?? total;
    if (end < from || span.start > to) continue;
    const last = found[found.length - 1];
    if (last && span.start - last.to < least && end - span.start < 2 * least && (last.many > 1 || last.to - last.from < 2 * least)) {
      last.to = Math.max(last.to, end);
      last.many++;
      if (span.state === "FAILURE" || span.state === "LOST" || (span.state === "RETRY" && last.state === "SUCCESS")) last.state = span.state;
    } else {
      found.push({ ...span, from: span.start, to: end, many: 1 });
    }
  }
  return found;
}
