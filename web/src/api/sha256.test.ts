import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { digestOf, Sha256 } from "./sha256";

const file = (length: number) => Uint8Array.from({ length }, (_, i) => (i * 31 + 7) & 255);
const expected = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

test("every length around a block gives the digest of the standard", () => {
  for (let length = 0; length <= 200; length++) expect(new Sha256().update(file(length)).hex()).toBe(expected(file(length)));
});

test("the pieces in which a file comes make no difference", () => {
  const bytes = file(1000);
  for (const size of [1, 7, 63, 64, 65, 300]) {
    const hash = new Sha256();
    for (let at = 0; at < bytes.length; at += size) hash.update(bytes.subarray(at, at + size));
    expect(hash.hex()).toBe(expected(bytes));
  }
});

test("a file of two pieces is read to its end", async () => {
  const bytes = file((4 << 20) + 5);
  const told: number[] = [];
  expect(await digestOf(new Blob([bytes]), (done) => told.push(done))).toBe(`sha256:${expected(bytes)}`);
  expect(told.at(-1)).toBe(1);
});
