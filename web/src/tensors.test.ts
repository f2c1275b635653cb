import { expect, test } from "vitest";
import type { TensorSpec } from "./api/types";
import { classesOf, example, imageOf, imageTensor, largest, rawInputOf, textRequest } from "./tensors";

const spec = (name: string, datatype: TensorSpec["datatype"], shape: number[]): TensorSpec => ({ name, datatype, shape });

test("an example has one row and a value of its datatype in every place", () => {
  const made = example({ max_batch_size: 4, inputs: [spec("x", "FP32", [-1, 2]), spec("s", "BYTES", [-1, -1])] });
  expect(made.inputs.map((input) => input.shape)).toEqual([[1, 2], [1, 8]]);
  expect(made.inputs[0]?.data).toEqual([0, 0]);
  expect(made.inputs[1]?.data).toHaveLength(8);
  expect(made.inputs[1]?.data[0]).toBe("text");
});

test("an input of three channels is an image, in either order of axes", () => {
  expect(imageOf({ inputs: [spec("i", "FP32", [-1, 3, 10, 20])] })).toMatchObject({ width: 20, height: 10, channelsFirst: true });
  expect(imageOf({ inputs: [spec("i", "UINT8", [-1, -1, -1, 3])] })).toMatchObject({ width: 224, height: 224, channelsFirst: false });
  expect(imageOf({ inputs: [spec("i", "FP32", [-1, 4])] })).toBeNull();
});

test("pixels come into the order of the axes", () => {
  const pixels = Uint8ClampedArray.from([1, 2, 3, 255, 4, 5, 6, 255]);
  const at = (channelsFirst: boolean) => imageTensor({ name: "i", width: 2, height: 1, channelsFirst, datatype: "FP32" }, pixels, (v) => v).data;
  expect(at(true)).toEqual([1, 4, 2, 5, 3, 6]);
  expect(at(false)).toEqual([1, 2, 3, 4, 5, 6]);
});

test("the largest values come first", () => expect(largest([0.1, "NaN", 3, 2], 2)).toEqual([{ index: 2, value: 3 }, { index: 3, value: 2 }]));

test("a declared picture or text is sent as it is", () => {
  const text = { kind: "text" as const, tokenizer: "sha256:0", max_length: 8, inputs: { ids: "ids" as const } };
  expect(rawInputOf({ preprocess: { sentence: text } })).toEqual({ name: "sentence", kind: "text" });
  expect(rawInputOf({})).toBeNull();
  const inputs = [{ name: "sentence", datatype: "BYTES", shape: [1], data: ["Good morning."] }];
  expect(textRequest({}, "sentence", "Good morning.")).toEqual({ inputs });
  const classes = [{ name: "mood", parameters: { classification: 3 } }];
  expect(textRequest({ postprocess: { mood: { top_k: 3 }, vector: { pool: "mean" } } }, "sentence", "Good morning.")).toEqual({ inputs, outputs: classes });
});

test("classes are read with their labels, and other texts are none", () => {
  const read = (data: string[]) => classesOf({ datatype: "BYTES", data });
  expect(read(["0.75:281:tabby: cat", "-1.5:3"])).toEqual([{ score: 0.75, index: 281, label: "tabby: cat" }, { score: -1.5, index: 3, label: null }]);
  expect(read(["0.75:281", "a cat"])).toBeNull();
  expect(classesOf({ datatype: "FP32", data: [1] })).toBeNull();
});
