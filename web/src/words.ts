/** The events of a cluster as lines of a timeline. */

import type { EventView } from "./api/types";
import { subjectText } from "./live/state";

/** What is drawn between two events: nothing, or the length of the pause in milliseconds. */
export interface Line {
  event: EventView;
  /** The number of further events that this one stands for. */
  more: number;
  /** The time in milliseconds without an event before this one (after it in time), if it is long. */
  pause: number | null;
}

/** The time in milliseconds without an event from which on it is drawn as a pause. */
const PAUSE = 120_000;

/** Events that a reader need not see one by one: the steps of replicas. */
const isStep = (event: EventView) => event.kind === "replica" && !["lost", "ejected", "failed", "backing_off"].includes(event.state);

export type Level = "important" | "all";

/** The newest first. `important` leaves out the steps of replicas and of models on their way. */
export function linesOf(events: readonly EventView[], level: Level, words: readonly string[]): Line[] {
  const lines: Line[] = [];
  for (const event of [...events].reverse()) {
    if (level === "important" && (isStep(event) || isUnderWay(event))) continue;
    const text = `${event.text} ${event.reason ?? ""} ${event.kind} ${event.state}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    const newer = lines[lines.length - 1];
    const same = level === "important" ? lines.slice(-NEAR).find((line) => repeats(line.event, event)) : undefined;
    if (same) {
      same.more += 1;
      continue;
    }
    const pause = newer ? newer.event.at_ms - event.at_ms : 0;
    lines.push({ event, more: 0, pause: pause >= PAUSE ? pause : null });
  }
  return lines;
}

/** The number of lines within which an event that repeats another one is counted there. */
const NEAR = 6;

/** A model drifts, or is ready for another reason, again and again: the newest time says enough. */
function repeats(newer: EventView, older: EventView): boolean {
  const repeatable = newer.kind === "drift" || (newer.kind === "model" && newer.state === "ready");
  return repeatable && newer.kind === older.kind && newer.state === older.state && subjectText(newer.subject) === subjectText(older.subject);
}

const isUnderWay = (event: EventView) => event.kind === "model" && ["fetching", "planning", "loading"].includes(event.state);
