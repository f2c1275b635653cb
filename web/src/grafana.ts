/** Links to the boards of Grafana, in the time window of a chart. */

import type { Window } from "./history";

/** A board of `deploy/grafana`. */
export type Board = "overview" | "model" | "devices";

/** The address of a board at this Grafana. */
export function boardHref(base: string, board: Board, { name, from, to }: Window, model?: string): string {
  const query = new URLSearchParams({ from: name === null ? String(from) : `now-${name}`, to: to === null ? "now" : String(to) });
  if (model !== undefined) query.set("var-model", model);
  return `${base}/d/packhorse-${board}?${query}`;
}
