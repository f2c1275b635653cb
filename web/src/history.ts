/** The history of models and devices as charts have it, and the time window that is in the address. */

import type { HistoryMark } from "./api/types";
import { clock, dateAndTime } from "./format";

/** The windows that one can choose, by their names in the address, in milliseconds. */
export const WINDOWS: Readonly<Record<string, number>> = { "1h": 3_600_000, "6h": 6 * 3_600_000, "24h": 24 * 3_600_000 };
const DEFAULT = "1h";
/** The time before the begin of an incident that its charts show, in milliseconds. */
const BEFORE = 300_000;

/** A time window: its name, or the times at which it begins and ends, in milliseconds since 1970. */
export interface Window {
  name: string | null;
  /** As the API takes it: negative numbers count from now. */
  from: number;
  /** Null if it ends now. */
  to: number | null;
}

/** Reads the window of an address. */
export function windowOf(query: URLSearchParams): Window {
  const [since, until] = ["since", "until"].map((name) => timeOf(query, name));
  if (since) return { name: null, from: since, to: until && until > since ? until : null };
  const asked = query.get("window");
  const name = asked !== null && Object.hasOwn(WINDOWS, asked) ? asked : DEFAULT;
  return { name, from: -(WINDOWS[name] ?? 0), to: null };
}

/** Reads a time of an address, in milliseconds since 1970; null if there is none. */
export function timeOf(query: URLSearchParams, name: string): number | null {
  const time = Number(query.get(name));
  return Number.isFinite(time) && time > 0 ? time : null;
}

/** The value of `since` in an address for what began then. */
export const sinceOf = (beganMs: number): number => Math.max(1, Math.round(beganMs - BEFORE));

/** The window of charts of what began and ended then, or has not ended: from some minutes before to some minutes after. */
export function around(beganMs: number, endMs: number | null | undefined, nowMs: number): { since: number; until?: number } {
  const since = sinceOf(beganMs);
  const until = endMs == null ? nowMs : Math.round(endMs + BEFORE);
  return until < nowMs ? { since, until } : { since };
}

/** The begin and the end of a window, in seconds since 1970. It begins no sooner than anything is known. */
export function rangeOf(window: Window, nowMs: number, knownFromMs: number | null): [number, number] {
  const to = window.to ?? nowMs;
  const from = window.from < 0 ? nowMs + window.from : window.from;
  return [Math.min(to, Math.max(from, knownFromMs ?? from)) / 1000, to / 1000];
}

export interface Columns {
  data: [number[], ...(number | null)[][]];
  /** The number of times within the points of which nothing is known. */
  gaps: number;
}

/** Makes the columns of a chart: where steps are missing, the values are null, so that no line leads over them. */
export function columns<P extends { at_ms: number }>(points: readonly P[], stepS: number, values: readonly ((point: P) => number | null)[]): Columns {
  const times: number[] = [];
  const rows = values.map((): (number | null)[] => []);
  const push = (at: number, point: P | null) => {
    times.push(at);
    values.forEach((value, i) => rows[i]?.push(point === null ? null : value(point)));
  };
  let gaps = 0;
  let next: number | null = null;
  for (const point of points) {
    const at = point.at_ms / 1000;
    if (next !== null && at > next) {
      push(next, null);
      gaps += 1;
    }
    push(at, point);
    next = at + stepS;
  }
  return { data: [times, ...rows], gaps };
}

/** Per second, over the time of which something is known. */
export const perSecond = (count: number, point: { covered_s: number }): number => count / Math.max(point.covered_s, 1e-3);

export const KINDS: Readonly<Record<HistoryMark["kind"], { label: string; colour: string }>> = {
  plan: { label: "plan", colour: "muted" },
  version: { label: "version", colour: "c1" },
  finding: { label: "incident", colour: "bad" },
};

/** The name of a window that is in no list: `since 12:00:00`, `12:00:00 to 12:05:00`. */
export function windowText({ from, to }: Pick<Window, "from" | "to">, nowMs: number): string {
  return to === null ? `since ${markTime(from, nowMs)}` : `${markTime(from, nowMs)} to ${markTime(to, nowMs)}`;
}

/** The time of a mark: with its day where that is not today. */
export function markTime(atMs: number, nowMs: number): string {
  const isToday = new Date(atMs).toDateString() === new Date(nowMs).toDateString();
  return isToday ? clock(atMs) : dateAndTime(atMs);
}
