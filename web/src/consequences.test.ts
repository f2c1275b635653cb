import { expect, test } from "vitest";
import { sentencesOf, takesFromOthers } from "./consequences";

const LOSS = { model: "cat", before_rps: 50, after_rps: 12.5, reason: "no device has time left" };

test("every model that loses something has its sentence", () => {
  expect(sentencesOf({ consequences: [LOSS] })).toEqual(["cat goes from 50.0/s to 12.5/s: no device has time left."]);
  expect(sentencesOf({ consequences: [] })).toEqual([]);
});

test("what is not known is said with its reason", () => {
  expect(sentencesOf({ consequences: null, consequences_unknown: "model a:1 has no profile yet" })).toEqual(["What the change takes from other models is not known: model a:1 has no profile yet."]);
  expect(sentencesOf({ consequences: null })).toEqual(["What the change takes from other models is not known."]);
});

test("a model takes nothing from others by what it loses itself", () => {
  expect(takesFromOthers({ consequences: [LOSS] }, ["cat"])).toBe(false);
  expect(takesFromOthers({ consequences: [LOSS] }, ["dog"])).toBe(true);
  expect(takesFromOthers({ consequences: null }, [])).toBe(false);
});
