/** Traces of a time window, in Chrome's trace event format. */

import { useState } from "react";
import { getText } from "../api/client";
import { useAction } from "../ui/hooks";
import { Field, Modal, Problem } from "../ui/parts";

/** Saves a trace as a file; the token is in a header, so a plain link would not do. */
export function Download({ from, to, text, primary = false }: { from: number; to: number; text: string; primary?: boolean }) {
  const save = useAction(async () => {
    const trace = await getText(`/v1/trace?from_ms=${Math.round(from)}&to_ms=${Math.round(to)}`);
    const url = URL.createObjectURL(new Blob([trace], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `packhorse-${new Date(from).toISOString().replace(/[:.]/g, "-")}.json`;
    link.click();
    URL.revokeObjectURL(url);
  });
  return (
    <>
      <button type="button" className={primary ? "primary" : ""} disabled={save.busy} onClick={() => void save.run()}>
        {text}
      </button>
      <Problem text={save.error} />
    </>
  );
}

/** The value of a field for date and time, in the viewer's zone. */
function local(unixMs: number): string {
  const date = new Date(unixMs);
  return new Date(unixMs - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export function Trace() {
  const [open, setOpen] = useState(false);
  const [from, setFrom] = useState("");
  const [seconds, setSeconds] = useState("60");
  const begin = new Date(from).getTime();
  return (
    <>
      <button
        type="button"
        onClick={() => {
          setFrom(local(Date.now() - 60_000));
          setOpen(true);
        }}
      >
        Export a trace
      </button>
      {open && (
        <Modal title="Export a trace" onClose={() => setOpen(false)}>
          <div className="modal-body">
            <p className="muted">Every request and batch of a time window, in Chrome's trace event format, as far back as the gateway remembers. Perfetto and chrome://tracing open it.</p>
            <div className="fields">
              <Field label="From">{(id) => <input id={id} type="datetime-local" step={1} value={from} onChange={(event) => setFrom(event.target.value)} />}</Field>
              <Field label="Length (seconds)">{(id) => <input id={id} type="number" min={1} max={3600} value={seconds} onChange={(event) => setSeconds(event.target.value)} />}</Field>
            </div>
          </div>
          <footer className="modal-foot">{Number.isFinite(begin) && Number(seconds) > 0 && <Download primary from={begin} to={begin + Number(seconds) * 1000} text="Save" />}</footer>
        </Modal>
      )}
    </>
  );
}
