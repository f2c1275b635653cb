import { expect, test } from "vitest";
import { variantOf } from "./variant";

test("a model has a family and an accuracy, or neither", () => {
  expect(variantOf("", " ")).toEqual({});
  expect(variantOf(" classifiers ", "84.1")).toEqual({ family: "classifiers", accuracy: 84.1 });
  expect(variantOf("a", "0")).toEqual({ family: "a", accuracy: 0 });
  expect(variantOf("a.b_c-d", "100")).toEqual({ family: "a.b_c-d", accuracy: 100 });
});

test.each([
  ["", "80", "give the family too"],
  ["classifiers", "", "required for a model of a family"],
  ["classifiers", "100.1", "from 0 to 100"],
  ["classifiers", "-1", "from 0 to 100"],
  ["classifiers", "many", "from 0 to 100"],
  ["a/b", "80", "letters, digits"],
  [".a", "80", "letters, digits"],
  ["a".repeat(129), "80", "letters, digits"],
])("%s with an accuracy of %s is refused as the gateway would", (family, accuracy, reason) => {
  expect(() => variantOf(family, accuracy)).toThrow(reason);
});
