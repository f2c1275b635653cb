import { expect, test } from "vitest";
import type { RequestStages } from "./api/types";
import { histogram, keyText, longestStage, meanStages, modelText, shareInTime, tally, whyText } from "./requests";

const stages = (more: Partial<RequestStages>): RequestStages => ({ receive: 0, decode: 0, tokenize: 0, lookup: 0, load: 0, batch: 0, queue: 0, network: 0, worker_queue: 0, copy_in: 0, compute: 0, copy_out: 0, ...more });

test("every value is in one bin, the largest in the last", () => {
  const bins = histogram([0, 1, 5, 9.99, 10], 5, 10);
  expect(bins.map((bin) => bin.count)).toEqual([2, 1, 0, 2, 0]);
  expect(bins.at(-1)?.to).toBeCloseTo(13);
});

test("a few values far away do not squeeze the others", () => {
  const values = [...new Array<number>(500).fill(50), 10_000];
  const bins = histogram(values, 10, 100);
  expect(bins.at(-1)?.to).toBeCloseTo(130);
  expect(bins.map((bin) => bin.count)).toEqual([0, 0, 0, 500, 0, 0, 0, 0, 0, 1]);
});

test("the axis reaches as far as most values, and is there without any", () => {
  expect(histogram(new Array<number>(100).fill(300), 4, 100).at(-1)?.to).toBeCloseTo(315);
  expect(histogram([], 4, 0).map((bin) => bin.count)).toEqual([0, 0, 0, 0]);
});

test("batch sizes are counted from one on", () => {
  expect(tally([1, 3, 3], 0)).toEqual([1, 0, 2]);
  expect(tally([2], 4)).toEqual([0, 1, 0, 0]);
});

test("the mean of stages, and the longest of them", () => {
  const mean = meanStages([{ stages_ms: stages({ queue: 4, compute: 1 }) }, { stages_ms: stages({ queue: 2, compute: 1 }) }]);
  expect(mean).toEqual(stages({ queue: 3, compute: 1 }));
  expect(longestStage(mean!).name).toBe("queue");
  expect(meanStages([])).toBeNull();
});

test("the share in time is of the requests that ended", () => {
  expect(shareInTime({ goodput_rps: 6, refused_rps: 1, late_rps: 0.5, failed_rps: 0.5 })).toBeCloseTo(0.75);
  expect(shareInTime({ goodput_rps: 0, refused_rps: 0, late_rps: 0, failed_rps: 0 })).toBeNull();
});

test("a rejected request has a status, and perhaps no model", () => {
  expect([modelText({ model: "m", version: 2 }), modelText({ model: "m", version: null }), modelText({ model: null, version: null })]).toEqual(["m:2", "m", "–"]);
  expect([keyText({ key: "1a", key_name: "shop" }), keyText({ key: "1a", key_name: null }), keyText({})]).toEqual(["shop", "1a", ""]);
  expect([whyText({ status: 403, reason: "no" }), whyText({ status: null, reason: "late" }), whyText({ reason: null })]).toEqual(["403: no", "late", ""]);
});
