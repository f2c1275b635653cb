/** What admins did: by subject, person and time, all of it in the address. */

import { useEffect, useState } from "react";
import { get } from "../api/client";
import type { AuditEntry } from "../api/types";
import { actorText, actsPath, changeText, joined, type Narrowed, narrowedBy } from "../audit";
import { dateAndTime } from "../format";
import { timeOf, windowText } from "../history";
import { textOf, useLoaded } from "../ui/hooks";
import { Card, Empty, Loading, Problem, Search } from "../ui/parts";
import { href, navigate } from "../ui/route";
import { type Column, Table } from "../ui/table";

/** The number of acts that are read at a time. */
const PAGE = 200;
/** The kinds of acts. */
const KINDS = ["model", "policy", "node", "key", "profiles", "pairs", "session", "backup", "artifact"] as const;

const listHref = (narrowed: Narrowed): string => href(["timeline"], { show: "audit", ...narrowed });
const subjectLink = (subject: string | null | undefined) => (subject ? <a href={listHref({ subject })} aria-label={`Acts about ${subject}`}>{subject}</a> : null);

const COLUMNS: readonly Column<AuditEntry>[] = [
  { title: "When", cell: (e) => dateAndTime(e.at_ms), sort: (e) => e.id },
  { title: "Who", cell: (e) => actorText(e), sort: actorText },
  { title: "From", cell: (e) => e.actor.address, sort: (e) => e.actor.address ?? "", from: "desktop" },
  { title: "Act", cell: (e) => e.action, sort: (e) => e.action },
  { title: "Subject", cell: (e) => subjectLink(e.subject), sort: (e) => e.subject ?? "", from: "tablet" },
  { title: "Change", cell: (e) => <span className="muted" title={changeText(e)}>{changeText(e)}</span>, from: "tablet", grow: true },
];

export function Audit({ query }: { query: URLSearchParams }) {
  const narrowed = narrowedBy(query);
  const path = actsPath(narrowed, PAGE);
  const newest = useLoaded(path, (signal) => get<AuditEntry[]>(path, signal), 5000);
  const earlier = useEarlier(path, narrowed);
  const acts = newest.data && joined(newest.data, earlier.acts);
  const [since, until] = [timeOf(query, "since"), timeOf(query, "until")];
  const to = (more: Narrowed) => navigate(listHref(present({ ...narrowed, ...more })));
  return (
    <Card
      className="flush"
      title="Audit log"
      note="what admins did, the newest first"
      actions={
        <>
          <Search label="Find acts by their subject" placeholder="model, node or key" value={narrowed.subject ?? ""} onSearch={(subject) => to({ subject })} />
          <Search label="Find acts by who acted" placeholder="who: name or key" value={narrowed.actor ?? ""} onSearch={(actor) => to({ actor })} />
          <select aria-label="Kind of act" value={narrowed.action ?? ""} style={{ width: "auto" }} onChange={(event) => to({ action: event.target.value })}>
            <option value="">all acts</option>
            {KINDS.map((kind) => (
              <option key={kind}>{kind}</option>
            ))}
          </select>
        </>
      }
    >
      {since !== null && (
        <p className="note in-window">
          Only those {windowText({ from: since, to: until }, Date.now())}. <a href={listHref(present({ ...narrowed, since: "", until: "" }))}>All times</a>
        </p>
      )}
      <Problem text={newest.error ?? earlier.error} />
      {acts ? (
        <Table label="Audit log" rows={acts} columns={COLUMNS} rowKey={(e) => String(e.id)} maxHeight={Math.max(400, innerHeight - 220)} empty={<Empty title="There is no such act." />} />
      ) : (
        !newest.error && <Loading what="the audit log" />
      )}
      {acts && acts.length >= PAGE && !earlier.ended && (
        <button type="button" disabled={earlier.busy} onClick={() => earlier.more(acts.at(-1)?.id)}>
          Show earlier ones
        </button>
      )}
    </Card>
  );
}

/** Leaves out what is empty. */
const present = (narrowed: Narrowed): Narrowed => Object.fromEntries(Object.entries(narrowed).filter(([, value]) => value !== ""));

/** The pages before the newest, which are read when they are asked for. */
function useEarlier(path: string, narrowed: Narrowed) {
  const [state, setState] = useState<{ acts: readonly AuditEntry[]; ended: boolean; busy: boolean; error: string | null }>({ acts: [], ended: false, busy: false, error: null });
  useEffect(() => setState({ acts: [], ended: false, busy: false, error: null }), [path]);
  const more = async (before: number | undefined) => {
    setState((known) => ({ ...known, busy: true, error: null }));
    try {
      const page = await get<AuditEntry[]>(actsPath(narrowed, PAGE, before));
      setState((known) => ({ acts: [...known.acts, ...page], ended: page.length < PAGE, busy: false, error: null }));
    } catch (error) {
      setState((known) => ({ ...known, busy: false, error: textOf(error) }));
    }
  };
  return { ...state, more: (before: number | undefined) => void more(before) };
}
