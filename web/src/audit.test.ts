import { expect, test } from "vitest";
import type { AuditEntry } from "./api/types";
import { actorText, actsPath, changeText, joined, narrowedBy } from "./audit";

test("an actor is a name, with its key and its session", () => {
  const actor = { name: "deploy", key_id: null, session: false, address: "10.0.0.7" };
  expect(actorText({ actor })).toBe("deploy");
  expect(actorText({ actor: { ...actor, key_id: "1f3a5b7c" } })).toBe("deploy (key 1f3a5b7c)");
  expect(actorText({ actor: { ...actor, key_id: "1f3a5b7c", session: true } })).toBe("deploy (key 1f3a5b7c, dashboard)");
});

test("a change is its fields that are set", () => {
  expect(changeText({ change: { policy: "usher", deadline_s: null, split: { 1: 90, 2: 10 } } })).toBe('policy usher, split {"1":90,"2":10}');
  expect(changeText({ change: {} })).toBe("");
  const before = { slo_ms: 200, rate_rps: 10, split: null };
  expect(changeText({ change: { slo_ms: 150, rate_rps: null, split: { 2: 100 } }, before })).toBe('slo_ms 200 → 150, rate_rps 10 → none, split none → {"2":100}');
});

test("acts are narrowed by the address, and there is no end of earlier ones", () => {
  const narrowed = narrowedBy(new URLSearchParams("show=audit&subject=m&since=5&actor="));
  expect(narrowed).toEqual({ subject: "m", since: "5" });
  expect(actsPath(narrowed, 200)).toBe("/v1/audit?subject=m&since=5&limit=200");
  expect(actsPath({}, 200, 7)).toBe("/v1/audit?limit=200&before=7");
  const acts = (...ids: number[]) => ids.map((id) => ({ id }) as AuditEntry);
  // Two acts came since the earlier page was read.
  expect(joined(acts(9, 8, 7), acts(6, 5)).map((act) => act.id)).toEqual([9, 8, 7, 6, 5]);
  expect(joined(acts(9, 8), acts(8, 7)).map((act) => act.id)).toEqual([9, 8, 7]);
});
