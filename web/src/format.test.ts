import { expect, test } from "vitest";
import { bytes, count, ms, percent, rate, span } from "./format";

const check = (format: (value: number) => string, pairs: [number, string][]) => {
  for (const [value, text] of pairs) expect(format(value)).toBe(text);
};

test("durations have three digits and their unit", () => check(ms, [[0, "0.00 ms"], [8.254, "8.25 ms"], [9.996, "10.0 ms"], [99.96, "100 ms"], [250, "250 ms"], [999.6, "1.00 s"], [9995, "10.0 s"]]));
test("rates have a digit after the point below 100", () => check(rate, [[0, "0"], [0.04, "0.0"], [12.34, "12.3"], [99.96, "100"], [1234.5, "1,235"]]));
test("sizes are in powers of 1024", () => check(bytes, [[0, "0 B"], [1023, "1.0 KiB"], [357341279, "341 MiB"], [17179869184, "16.0 GiB"]]));
test("lengths of time are in one unit", () => check(span, [[1500, "2 s"], [120_000, "2 min"], [7_200_000, "2 h"], [260_000_000, "3 d"]]));
test("parts are percent", () => check(percent, [[0.9934, "99.3 %"], [1, "100.0 %"]]));
test("nouns have their plural", () => {
  expect(count(1, "replica")).toBe("1 replica");
  expect(count(1200, "model")).toBe("1,200 models");
});
test("what is unknown is a dash", () => {
  expect(ms(null)).toBe("–");
  expect(bytes(undefined)).toBe("–");
});
