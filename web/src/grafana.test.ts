import { expect, test } from "vitest";
import { boardHref } from "./grafana";

test("a board opens in the time window of the chart", () => {
  const base = "https://grafana.example.com/boards";
  expect(boardHref(base, "overview", { name: "6h", from: -21_600_000, to: null })).toBe(`${base}/d/packhorse-overview?from=now-6h&to=now`);
  expect(boardHref(base, "model", { name: null, from: 5, to: 9 }, "a&b")).toBe(`${base}/d/packhorse-model?from=5&to=9&var-model=a%26b`);
});
