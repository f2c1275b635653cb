import { expect, test } from "vitest";
import type { ModelView } from "./api/types";
import { nameLike, newestVersions, NOTHING, previewOf, readWhatIf, whatIfOf } from "./whatif";

const model = (name: string, version: number, rate: number) => ({ name, version, rate_rps: rate, slo_ms: 100 }) as ModelView;
const MODELS = [model("a", 1, 10), model("a", 2, 20), model("b", 1, 5)];

test("nothing changed asks for nothing", () => expect(previewOf(NOTHING, MODELS)).toEqual({}));

test("a load applies to the newest version of every model but those with a rate of their own", () => {
  const preview = previewOf({ ...NOTHING, load: 2, models: { b: { rate: 7 } } }, MODELS);
  expect(preview).toEqual({ models: [{ name: "a", rate_rps: 40 }, { name: "b", rate_rps: 7 }] });
});

test("a model that is left out has no rate", () => {
  expect(previewOf({ ...NOTHING, models: { a: { removed: true, rate: 3 }, gone: { removed: true } } }, MODELS)).toEqual({ remove: ["a"] });
});

test("devices are added and taken away by kind, if there are any", () => {
  const devices = [
    { kind: "V100", count: 2 },
    { kind: "A100", count: -1 },
  ];
  expect(previewOf({ ...NOTHING, policy: "nexus", devices: { V100: 2, T4: 0, A100: -1 } }, MODELS)).toEqual({ policy: "nexus", devices });
});

test("the preview of a cure becomes the same request again", () => {
  const cure = { models: [{ name: "b", slo_ms: 240 }], devices: [{ kind: "V100", count: 1 }], remove: ["a"] };
  expect(previewOf(whatIfOf(cure), MODELS)).toEqual(cure);
});

test("a model to add has the rate and the SLO of the one that it is like, until it has its own", () => {
  const newest = newestVersions(MODELS);
  const added = { ...NOTHING, load: 2, models: { [nameLike("b", NOTHING, newest)]: { like: "b" }, c: { like: "a", rate: 3, slo: 7 }, d: { like: "gone" } } };
  expect(previewOf(added, MODELS).models?.filter((model) => model.profile_of)).toEqual([
    { name: "b-2", profile_of: "b", rate_rps: 10, slo_ms: 100 },
    { name: "c", profile_of: "a", rate_rps: 3, slo_ms: 7 },
  ]);
  expect(nameLike("b", added, newest)).toBe("b-3");
  const request = { models: [{ name: "c", profile_of: "a", rate_rps: 3, slo_ms: 7 }] };
  expect(previewOf(whatIfOf(request), MODELS)).toEqual(request);
});

test("an address that is none changes nothing", () => {
  for (const text of [null, "", "{", "3", "null"]) expect(readWhatIf(text)).toEqual(NOTHING);
});

test("a load applies to the planned rate of a model without a reservation", () => {
  const measured = { ...model("a", 1, 0), rate_rps: null, measured: { rate_rps: 3, low_rps: 2, high_rps: 4, planned_rps: 3.5 } };
  const unmeasured = { ...model("b", 1, 0), rate_rps: null, measured: null };
  expect(previewOf({ ...NOTHING, load: 2 }, [measured, unmeasured])).toEqual({ models: [{ name: "a", rate_rps: 7 }, { name: "b", rate_rps: 2 }] });
});
