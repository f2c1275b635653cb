/** What charts of the past have in common: what is loaded, the choice of the time window, and the list of marks. */

import { ApiError, get, session } from "../api/client";
import type { HistoryMark, HistoryView } from "../api/types";
import { count } from "../format";
import { type Board, boardHref } from "../grafana";
import { KINDS, markTime, rangeOf, type Window, WINDOWS, windowOf, windowText } from "../history";
import type { Mark, Range } from "./charts";
import { useLoaded } from "./hooks";
import { href, useRoute } from "./route";

/** The time in milliseconds between two readings of the newest points. */
const REFRESH = 10_000;

export interface History {
  view: HistoryView;
  window: Window;
  /** The begin and the end of the window, in seconds since 1970. */
  range: Range;
  error: string | null;
}

const NONE: HistoryView = { from_ms: 0, to_ms: 0, step_s: 10, known_from_ms: null, requests: [], device: [], marks: [] };

/** Loads the history of a model, of a device or of all models, in a window: that of the address if none is given. */
export function useHistory(which: { model?: string; version?: number; device?: string }, given?: Window): History {
  const { query: address } = useRoute();
  const window = given ?? windowOf(address);
  const asked = Object.entries({ ...which, from_ms: window.from, to_ms: window.to ?? undefined }).filter(([, value]) => value !== undefined);
  const query = new URLSearchParams(asked.map(([key, value]) => [key, String(value)]));
  const path = `/v1/history?${query}`;
  const loaded = useLoaded(
    path,
    async (signal) => {
      try {
        return await get<HistoryView>(path, signal);
      } catch (error) {
        // Nothing is known of it yet.
        if (error instanceof ApiError && error.status === 404) return { ...NONE, to_ms: Date.now() };
        throw error;
      }
    },
    REFRESH,
  );
  const view = loaded.data ?? NONE;
  return { view, window, range: rangeOf(window, view.to_ms || Date.now(), view.known_from_ms ?? null), error: loaded.error };
}

/** Links to the same page with another window, and to the board of Grafana with this one. */
export function WindowPicker({ window, board, model }: { window: Window; board: Board; model?: string }) {
  const grafana = session()?.grafana_url;
  const { path, query } = useRoute();
  const others = Object.fromEntries([...query].filter(([key]) => !["window", "since", "until"].includes(key)));
  return (
    <div className="windows" role="group" aria-label="Time window">
      {Object.keys(WINDOWS).map((name) => (
        <a key={name} href={href(path, { ...others, window: name })} aria-current={window.name === name ? "true" : undefined}>
          {name.replace("h", " h")}
        </a>
      ))}
      {window.name === null && <span aria-current="true">{windowText(window, Date.now())}</span>}
      {grafana && (
        <a href={boardHref(grafana, board, window, model)} target="_blank" rel="noreferrer">
          Grafana
        </a>
      )}
    </div>
  );
}

/** The marks as a chart draws them. */
export const chartMarks = (marks: readonly HistoryMark[]): Mark[] => marks.map((mark) => ({ at: mark.at_ms / 1000, colour: KINDS[mark.kind].colour }));

/** What a chart says of its gaps. */
export const gapsText = (gaps: number): string => (gaps === 0 ? "" : `${count(gaps, "gap")}: the gateway was down, or nothing is known`);

/** The marks of a chart as text. */
export function Marks({ marks }: { marks: readonly HistoryMark[] }) {
  if (marks.length === 0) return null;
  const now = Date.now();
  return (
    <details className="marks">
      <summary>{count(marks.length, "mark")}: plans, versions and incidents</summary>
      <ul>
        {[...marks].reverse().map((mark, i) => (
          <li key={i}>
            <time dateTime={new Date(mark.at_ms).toISOString()}>{markTime(mark.at_ms, now)}</time> {KINDS[mark.kind].label}: {mark.text}
          </li>
        ))}
      </ul>
    </details>
  );
}
