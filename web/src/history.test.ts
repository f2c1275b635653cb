import { expect, test } from "vitest";
import { around, columns, perSecond, rangeOf, sinceOf, windowOf, windowText } from "./history";

const point = (at: number, value = 1) => ({ at_ms: at * 1000, covered_s: 10, value });

test("a step of which nothing is known is a gap: neither zero nor a line", () => {
  const { data, gaps } = columns([point(100), point(110, 0), point(150), point(160)], 10, [(p) => p.value]);
  expect(data).toEqual([
    [100, 110, 120, 150, 160],
    [1, 0, null, 1, 1],
  ]);
  expect(gaps).toBe(1);
  expect(columns([], 10, [(p: { at_ms: number }) => p.at_ms])).toEqual({ data: [[], []], gaps: 0 });
});

test("a rate is over the time that is known", () => {
  expect(perSecond(30, { covered_s: 5 })).toBe(6);
});

test("the window of an address is one of those that there are, or begins before something that began", () => {
  expect(windowOf(new URLSearchParams(""))).toEqual({ name: "1h", from: -3_600_000, to: null });
  expect(windowOf(new URLSearchParams("window=24h")).from).toBe(-86_400_000);
  for (const query of ["window=2h", "window=toString", "since=x", "since=-5"]) expect(windowOf(new URLSearchParams(query)).name).toBe("1h");
  const began = 1_800_000_000_000;
  const window = windowOf(new URLSearchParams(`since=${sinceOf(began)}`));
  expect(window).toEqual({ name: null, from: began - 300_000, to: null });
  expect(rangeOf(window, began, null)).toEqual([began / 1000 - 300, began / 1000]);
  const day = windowOf(new URLSearchParams("window=6h"));
  expect(rangeOf(day, began, 5)).toEqual([began / 1000 - 21_600, began / 1000]);
  expect(rangeOf(day, began, began - 60_000)).toEqual([began / 1000 - 60, began / 1000]);
});

test("what is over has a window that ends some minutes after it, and what is not has one that ends now", () => {
  const began = 1_800_000_000_000;
  const now = began + 3_600_000;
  expect(around(began, began + 60_000, now)).toEqual({ since: began - 300_000, until: began + 360_000 });
  expect(around(began, now - 60_000, now)).toEqual({ since: began - 300_000 });
  expect(around(began, null, now)).toEqual({ since: began - 300_000 });
  const window = windowOf(new URLSearchParams(`since=${began}&until=${began + 60_000}`));
  expect(window).toEqual({ name: null, from: began, to: began + 60_000 });
  expect(rangeOf(window, now, began + 10_000)).toEqual([began / 1000 + 10, began / 1000 + 60]);
  // Nothing is known of it any more.
  expect(rangeOf(window, now, now)).toEqual([began / 1000 + 60, began / 1000 + 60]);
  expect(windowText(window, began)).toMatch(/^\d.* to \d/);
  expect(windowOf(new URLSearchParams(`since=${began}&until=${began - 1}`)).to).toBe(null);
  expect(windowOf(new URLSearchParams(`until=${began}`)).name).toBe("1h");
});
