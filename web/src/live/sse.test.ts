import { expect, test } from "vitest";
import { EventParser } from "./sse";

const STREAM = 'retry: 1000\n\nid: 7\nevent: snapshot\ndata: {"id":7}\n\n: keep-alive\n\nevent: goodput\ndata: {"a":1}\n\nid: 8\nevent: model\ndata: x\n\n';

test("events are found wherever the stream is cut", () => {
  for (let size = 1; size <= STREAM.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) events.push(...parser.push(STREAM.slice(at, at + size)));
    expect(events).toEqual([
      { id: "7", name: "snapshot", data: '{"id":7}' },
      { id: null, name: "goodput", data: '{"a":1}' },
      { id: "8", name: "model", data: "x" },
    ]);
  }
});

test("an event that is not complete yet is kept for later", () => {
  const parser = new EventParser();
  expect(parser.push("event: model\ndata: x\n")).toEqual([]);
  expect(parser.push("\n")).toEqual([{ id: null, name: "model", data: "x" }]);
});
