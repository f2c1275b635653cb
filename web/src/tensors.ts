/** Requests of the Open Inference Protocol that are made in the page. */

import type { ModelView, TensorSpec } from "./api/types";

export interface TensorData {
  name: string;
  datatype: string;
  shape: number[];
  data: (number | string | boolean)[];
}

/** The largest number of values that an example has. */
const MOST = 1 << 20;

/** Returns a request with one row of zeros, and 8 for every other dimension without a size. */
export function example(model: Pick<ModelView, "inputs" | "max_batch_size">): { inputs: TensorData[] } {
  return {
    inputs: model.inputs.map((spec) => {
      const shape = spec.shape.map((size, axis) => (size >= 0 ? size : axis === 0 && model.max_batch_size > 0 ? 1 : 8));
      const length = Math.min(MOST, shape.reduce((product, size) => product * size, 1));
      return { name: spec.name, datatype: spec.datatype, shape, data: new Array<number | string | boolean>(length).fill(zero(spec.datatype)) };
    }),
  };
}

function zero(datatype: TensorSpec["datatype"]): number | string | boolean {
  return datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0;
}

/** How the values of pixels, from 0 to 255, become inputs of a model. */
export const SCALES: Readonly<Record<string, (value: number, channel: number) => number>> = {
  "0 to 1": (value) => value / 255,
  "−1 to 1": (value) => (value - 127) / 128,
  "ImageNet mean and deviation": (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel]!) / [0.229, 0.224, 0.225][channel]!,
  "0 to 255": (value) => value,
};

/** The place of an image in a model's only input: its size and the order of its axes. Null if the input is none. */
export function imageOf(model: Pick<ModelView, "inputs">): { name: string; width: number; height: number; channelsFirst: boolean; datatype: string } | null {
  const [spec, ...others] = model.inputs;
  if (!spec || others.length > 0 || spec.shape.length !== 4) return null;
  const [, a, b, c] = spec.shape as [number, number, number, number];
  const size = (n: number) => (n > 0 ? n : 224);
  if (a === 3) return { name: spec.name, height: size(b), width: size(c), channelsFirst: true, datatype: spec.datatype };
  if (c === 3) return { name: spec.name, height: size(a), width: size(b), channelsFirst: false, datatype: spec.datatype };
  return null;
}

/** Turns the pixels of a canvas (red, green, blue, opacity of each) into a tensor of one row. */
export function imageTensor(place: NonNullable<ReturnType<typeof imageOf>>, rgba: Uint8ClampedArray, scale: (value: number, channel: number) => number): TensorData {
  const { width, height, channelsFirst } = place;
  const data = new Array<number>(3 * width * height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      const at = channelsFirst ? channel * width * height + pixel : pixel * 3 + channel;
      const value = scale(rgba[pixel * 4 + channel] ?? 0, channel);
      data[at] = place.datatype.startsWith("U") || place.datatype.startsWith("I") ? Math.round(value) : Number(value.toFixed(4));
    }
  }
  return { name: place.name, datatype: place.datatype, shape: channelsFirst ? [1, 3, height, width] : [1, height, width, 3], data };
}

/** An input that the gateway makes of a picture or a text, as the model's registration declares. Null where it declares none. */
export function rawInputOf(model: Pick<ModelView, "preprocess">): { name: string; kind: "image" | "text" } | null {
  const [declared] = Object.entries(model.preprocess ?? {});
  return declared ? { name: declared[0], kind: declared[1].kind } : null;
}

/** A request with a text as it is, which asks for the classes that the model declares. */
export function textRequest(model: Pick<ModelView, "postprocess">, name: string, text: string): object {
  const outputs = Object.entries(model.postprocess ?? {}).flatMap(([output, declared]) => ("top_k" in declared ? [{ name: output, parameters: { classification: declared.top_k } }] : []));
  return { inputs: [{ name, datatype: "BYTES", shape: [1], data: [text] }], ...(outputs.length > 0 && { outputs }) };
}

/** The classes of an output, the best first; null where it is none of Triton's classification extension, `SCORE:INDEX:LABEL`. */
export function classesOf(output: Pick<TensorData, "datatype" | "data">): { score: number; index: number; label: string | null }[] | null {
  if (output.datatype !== "BYTES" || output.data.length === 0) return null;
  const classes = output.data.map((text) => /^(-?[\d.]+(?:e-?\d+)?):(\d+)(?::([^]*))?$/.exec(String(text)));
  if (classes.some((parts) => parts === null)) return null;
  return classes.map((parts) => ({ score: Number(parts?.[1]), index: Number(parts?.[2]), label: parts?.[3] ?? null }));
}

/** The positions of the largest values of an output, the largest first. */
export function largest(data: readonly unknown[], count: number): { index: number; value: number }[] {
  const values = data.map((value, index) => ({ index, value: Number(value) })).filter(({ value }) => Number.isFinite(value));
  return values.sort((a, b) => b.value - a.value).slice(0, count);
}
