/** The small parts of which pages are made. */

import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { Consequences } from "../api/types";
import { sentencesOf } from "../consequences";

export type Tone = "good" | "warn" | "bad" | "busy" | "quiet";

const TONES: Record<string, Tone> = {
  ready: "good",
  serving: "good",
  completed: "good",
  cleared: "good",
  answered: "good",
  adopted: "busy",
  registered: "busy",
  fetching: "busy",
  profiling: "busy",
  planning: "busy",
  loading: "busy",
  proposed: "busy",
  rerouted: "busy",
  late: "warn",
  expired: "warn",
  refused: "warn",
  cordoned: "warn",
  draining: "warn",
  backing_off: "warn",
  warning: "warn",
  degraded: "warn",
  raised: "warn",
  rate: "warn",
  latency: "warn",
  slowdown: "warn",
  unplaced: "bad",
  failed: "bad",
  lost: "bad",
  ejected: "bad",
  critical: "bad",
};

export const toneOf = (state: string): Tone => TONES[state] ?? "quiet";

/** A state by colour and word. */
export function State({ state, title }: { state: string; title?: string }) {
  return (
    <span className={`state ${toneOf(state)}`} title={title}>
      <span className="dot" aria-hidden="true" />
      {state.replace("_", " ")}
    </span>
  );
}

export function Page({ title, lead, actions, children }: { title: ReactNode; lead?: ReactNode; actions?: ReactNode; children: ReactNode }) {
  return (
    <>
      <header className="page-head">
        <div>
          <h1 tabIndex={-1}>{title}</h1>
          {lead && <p className="lead">{lead}</p>}
        </div>
        {actions && <div className="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Card({ title, note, actions, children, className = "" }: { title?: ReactNode; note?: ReactNode; actions?: ReactNode; children: ReactNode; className?: string }) {
  const id = useId();
  return (
    <section className={`card ${className}`} aria-labelledby={title ? id : undefined}>
      {title && (
        <header>
          <h2 id={id}>{title}</h2>
          {note && <span className="note">{note}</span>}
          {actions && <div className="actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** A number with its unit and meaning. */
export function Figure({ label, value, unit, note, tone }: { label: string; value: string; unit?: string; note?: ReactNode; tone?: Tone }) {
  return (
    <div className={`figure ${tone ?? ""}`}>
      <span className="label">{label}</span>
      <span className="value">
        {value}
        {unit && <small> {unit}</small>}
      </span>
      {note && <span className="note">{note}</span>}
    </div>
  );
}

/** What stands where there is nothing yet: why, and what to do next. */
export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="empty">
      <p className="strong">{title}</p>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => {
    // Absent on pages that come by plain HTTP from another host; the text can be selected there.
    void navigator.clipboard?.writeText(text).then(() => setCopied(true));
  };
  return (
    <div className="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" onClick={copy} onBlur={() => setCopied(false)}>
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

export function Problem({ text }: { text: string | null }) {
  return text === null ? null : (
    <p className="problem" role="alert">
      {text}
    </p>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p className="loading" role="status">
      Loading {what}…
    </p>
  );
}

export function Modal({ title, onClose, children, wide = false }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    return () => element?.close();
  }, []);
  return (
    <dialog ref={dialog} className={wide ? "wide" : ""} aria-labelledby={id} onCancel={onClose}>
      <header>
        <h2 id={id}>{title}</h2>
        <button type="button" className="plain" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </header>
      {children}
    </dialog>
  );
}

/** Asks before something is destroyed. */
export function Confirm(props: { title: string; children: ReactNode; action: string; busy: boolean; error: string | null; onConfirm: () => void; onClose: () => void }) {
  return (
    <Modal title={props.title} onClose={props.onClose}>
      <div className="modal-body">{props.children}</div>
      <Problem text={props.error} />
      <footer className="modal-foot">
        <button type="button" onClick={props.onClose} autoFocus>
          Keep
        </button>
        <button type="button" className="danger" disabled={props.busy} onClick={props.onConfirm}>
          {props.action}
        </button>
      </footer>
    </Modal>
  );
}

/** What a change takes from models, as its dry run says. */
export function Costs({ consequences }: { consequences: Consequences }) {
  const sentences = sentencesOf(consequences);
  if (sentences.length === 0) return null;
  return (
    <div role="status">
      {consequences.consequences && <p className="strong">The planned goodput of these models becomes less:</p>}
      <ul>
        {sentences.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </div>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: ReactNode; children: (id: string) => ReactNode }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children(id)}
      {hint && <span className="hint">{hint}</span>}
    </div>
  );
}

/** A text that is looked for with the enter key. */
export function Search({ label, placeholder, value, onSearch }: { label: string; placeholder: string; value: string; onSearch: (text: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onSearch(text.trim());
      }}
    >
      <input className="search" type="search" placeholder={placeholder} aria-label={label} maxLength={128} value={text} onChange={(event) => setText(event.target.value)} />
    </form>
  );
}

/** A field of files, which may be dropped on it. */
export function FileField(props: { label: string; hint: ReactNode; accept: string; multiple?: boolean; onFiles: (files: FileList | null) => void }) {
  const [over, setOver] = useState(false);
  return (
    <div
      className={`drop ${over ? "over-it" : ""}`}
      onDragOver={(event) => (event.preventDefault(), setOver(true))}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        props.onFiles(event.dataTransfer.files);
      }}
    >
      <Field label={props.label} hint={props.hint}>
        {(id) => <input id={id} type="file" multiple={props.multiple} accept={props.accept} onChange={(event) => props.onFiles(event.target.files)} />}
      </Field>
    </div>
  );
}

/** A number that is typed. The text is kept as it is typed, so that it can be empty meanwhile. */
export function NumberField(props: { label: string; hint?: ReactNode; value: string; onChange: (value: string) => void; min?: number; max?: number; step?: number | "any"; unit?: string; disabled?: boolean; optional?: boolean }) {
  return (
    <Field label={props.unit ? `${props.label} (${props.unit})` : props.label} hint={props.hint}>
      {(id) => (
        <input
          id={id}
          type="number"
          inputMode="decimal"
          value={props.value}
          min={props.min}
          max={props.max}
          step={props.step ?? "any"}
          required={!props.optional}
          disabled={props.disabled}
          onChange={(event) => props.onChange(event.target.value)}
        />
      )}
    </Field>
  );
}

/** A bar that is filled to a fraction from 0 to 1. */
export function Meter({ fraction, tone = "busy", label }: { fraction: number; tone?: Tone; label: string }) {
  const width = `${Math.max(0, Math.min(1, fraction)) * 100}%`;
  return (
    <span className={`meter ${tone}`} role="img" aria-label={label}>
      <span style={{ width }} />
    </span>
  );
}
