import { expect, test } from "vitest";
import type { EventView } from "./api/types";
import { linesOf } from "./words";

let id = 0;
const event = (kind: EventView["kind"], state: EventView["state"], at: number, text: string): EventView => ({ id: ++id, kind, state, at_ms: at, text, subject: { model: "m:1" } });

test("the newest comes first, without the steps of replicas and of models on their way", () => {
  const events = [event("replica", "loading", 1, "a"), event("model", "loading", 2, "b"), event("model", "ready", 3, "c"), event("replica", "ejected", 4, "d")];
  expect(linesOf(events, "important", []).map((line) => line.event.text)).toEqual(["d", "c"]);
  expect(linesOf(events, "all", []).map((line) => line.event.text)).toEqual(["d", "c", "b", "a"]);
});

test("a drift that is told again and again is one line", () => {
  const events = [event("drift", "slowdown", 1, "1.2 times"), event("node", "lost", 2, "n"), event("drift", "slowdown", 3, "1.3 times")];
  expect(linesOf(events, "important", []).map((line) => [line.event.text, line.more])).toEqual([["1.3 times", 1], ["n", 0]]);
  expect(linesOf(events, "all", [])).toHaveLength(3);
});

test("long pauses are named", () => {
  const events = [event("node", "lost", 0, "a"), event("node", "ready", 1000, "b"), event("plan", "adopted", 601_000, "c")];
  expect(linesOf(events, "important", []).map((line) => line.pause)).toEqual([null, 600_000, null]);
});

test("every word must be there", () => {
  const events = [event("node", "lost", 0, "node rack-1 is lost"), event("node", "lost", 1, "node rack-2 is lost")];
  expect(linesOf(events, "all", ["rack-1", "lost"])).toHaveLength(1);
});
