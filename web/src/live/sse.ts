/** The parts of a `text/event-stream`. */

export interface StreamEvent {
  id: string | null;
  name: string;
  data: string;
}

/** Splits the text of a stream, which comes in arbitrary pieces, into events. */
export class EventParser {
  #text = "";

  /** Takes the next piece and returns the events that are complete with it. */
  push(piece: string): StreamEvent[] {
    this.#text += piece;
    const events: StreamEvent[] = [];
    for (;;) {
      const end = this.#text.indexOf("\n\n");
      if (end < 0) return events;
      const event = parse(this.#text.slice(0, end));
      if (event !== null) events.push(event);
      this.#text = this.#text.slice(end + 2);
    }
  }
}

/** Returns the event of a block of lines, or null for comments and reconnection times. */
function parse(block: string): StreamEvent | null {
  const event: StreamEvent = { id: null, name: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("id:")) event.id = value;
    else if (line.startsWith("event:")) event.name = value;
    else if (line.startsWith("data:")) data.push(value);
  }
  if (data.length === 0) return null;
  event.data = data.join("\n");
  return event;
}
