import { expect, test } from "vitest";
import { actorText, changeText } from "./audit";

test("an actor is a name, with its key and its session", () => {
  const actor = { name: "deploy", key_id: null, session: false, address: "10.0.0.7" };
  expect(actorText({ actor })).toBe("deploy");
  expect(actorText({ actor: { ...actor, key_id: "1f3a5b7c" } })).toBe("deploy (key 1f3a5b7c)");
  expect(actorText({ actor: { ...actor, key_id: "1f3a5b7c", session: true } })).toBe("deploy (key 1f3a5b7c, dashboard)");
});

test("a change is its fields that are set", () => {
  expect(changeText({ change: { policy: "usher", deadline_s: null, split: { 1: 90, 2: 10 } } })).toBe('policy usher, split {"1":90,"2":10}');
  expect(changeText({ change: {} })).toBe("");
});
