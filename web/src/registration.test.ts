import { expect, test } from "vitest";
import { type RegistrationFile, restOf, withFiles } from "./registration";

const read = {
  name: "moods",
  slo_ms: 100,
  max_batch_size: 4,
  queue_limit: 7,
  inputs: [],
  outputs: [],
  preprocess: { text: { kind: "text", tokenizer: "tokenizer.json", max_length: 8, inputs: { ids: "ids" } } },
  postprocess: { mood: { top_k: 2, labels: "lists/labels.txt" }, vector: { pool: "mean" } },
} as unknown as RegistrationFile;
const files = [new File(["{}"], "tokenizer.json"), new File(["dull\r\nfine: really\n"], "labels.txt")];

test("what the form has no place for is kept, with files in place of paths", async () => {
  const stored: string[] = [];
  const store = async (file: File) => {
    stored.push(file.name);
    return "sha256:77";
  };
  expect(await withFiles(restOf(read), files, store)).toEqual({
    queue_limit: 7,
    preprocess: { text: { kind: "text", tokenizer: "sha256:77", max_length: 8, inputs: { ids: "ids" } } },
    postprocess: { mood: { top_k: 2, labels: ["dull", "fine: really"] }, vector: { pool: "mean" } },
  });
  expect(stored).toEqual(["tokenizer.json"]);
});

test("a file that was not given is named", async () => {
  await expect(withFiles(restOf(read), [], async () => "")).rejects.toThrow("preprocess.text.tokenizer is the file tokenizer.json: drop it here, too");
});
