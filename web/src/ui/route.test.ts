import { expect, test } from "vitest";
import { href, parseRoute } from "./route";

test("an address is read as it was written", () => {
  const address = href(["models", "a/b ü"], { version: 2, whatif: '{"a":1}', absent: undefined });
  const route = parseRoute(address);
  expect(route.path).toEqual(["models", "a/b ü"]);
  expect(Object.fromEntries(route.query)).toEqual({ version: "2", whatif: '{"a":1}' });
});

test("what is no address leads to the overview", () => {
  for (const hash of ["", "#", "#/"]) expect(parseRoute(hash).path).toEqual([]);
  expect(parseRoute("#/%zz").path).toEqual(["%zz"]);
});
