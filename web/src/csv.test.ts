import { expect, test } from "vitest";
import { parseCsv } from "./csv";

test("rows are read by the names of their columns", () => {
  expect(parseCsv("a,b\r\n1,2\r\n3,\n")).toEqual([{ a: "1", b: "2" }, { a: "3", b: "" }]);
});

test("quoted cells may contain commas, quotes and line ends", () => {
  expect(parseCsv('k,n\n"void f<int, 4>(""x"")","1\n2"\n')).toEqual([{ k: 'void f<int, 4>("x")', n: "1\n2" }]);
});

test("nothing and a head alone have no rows", () => {
  expect(parseCsv("")).toEqual([]);
  expect(parseCsv("a,b\n")).toEqual([]);
});
