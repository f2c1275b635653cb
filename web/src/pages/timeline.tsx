/** What happened: events in words, requests that ended, what admins did, and traces of any minute. */

import { useMemo, useState } from "react";
import { get } from "../api/client";
import type { EventView } from "../api/types";
import { clock, count, dateAndTime, rate, span } from "../format";
import { columns, perSecond } from "../history";
import { subjectText } from "../live/state";
import { useCluster } from "../live/store";
import { Lines, type Series } from "../ui/charts";
import { chartMarks, gapsText, useHistory, WindowPicker } from "../ui/history";
import { useLoaded } from "../ui/hooks";
import { Card, Empty, Loading, Page, Problem, State } from "../ui/parts";
import { href, modelHref, useRoute } from "../ui/route";
import { type Level, linesOf } from "../words";
import { Audit } from "./audit";
import { Requests } from "./requests";
import { Trace } from "./trace";

/** The number of events that are read from before the tab was opened. */
const EARLIER = 1000;
/** The number of lines that are drawn at first, and more of at a time. */
const PAGE = 100;

export function Timeline() {
  const { query } = useRoute();
  const shown = query.get("show");
  const tab = (name: string, on: boolean, to: string) => (
    <a className={`button ${on ? "primary" : ""}`} href={to} aria-current={on ? "page" : undefined}>
      {name}
    </a>
  );
  return (
    <Page
      title="Timeline"
      actions={
        <>
          {tab("Events", shown === null, "#/timeline")}
          {tab("Requests", shown === "requests", href(["timeline"], { show: "requests" }))}
          {tab("Audit log", shown === "audit", href(["timeline"], { show: "audit" }))}
          <Trace />
        </>
      }
    >
      {shown === "requests" ? <Requests query={query} /> : shown === "audit" ? <Audit query={query} /> : <Events />}
    </Page>
  );
}

const SERIES: readonly Series[] = [
  { label: "Offered", colour: "c7", value: rate },
  { label: "Goodput", colour: "c0", fill: true, value: rate },
];

function Events() {
  const cluster = useCluster();
  const earlier = useLoaded("earlier", (signal) => get<EventView[]>(`/v1/events?follow=false&limit=${EARLIER}`, signal));
  const [level, setLevel] = useState<Level>("important");
  const [search, setSearch] = useState("");
  const [most, setMost] = useState(PAGE);
  const events = useMemo(() => {
    const byId = new Map(earlier.data?.map((event) => [event.id, event]));
    for (const event of cluster.events) byId.set(event.id, event);
    return [...byId.values()].sort((a, b) => a.id - b.id);
  }, [earlier.data, cluster.events]);
  const lines = useMemo(() => linesOf(events, level, search.toLowerCase().split(/\s+/).filter(Boolean)), [events, level, search]);
  const { view, window, range, error } = useHistory({});
  const { data, gaps } = useMemo(() => columns(view.requests, view.step_s, [(p) => perSecond(p.offered, p), (p) => perSecond(p.in_time, p)]), [view]);
  const marks = useMemo(() => chartMarks(view.marks), [view]);
  return (
    <div className="stack">
      <Card title="Goodput" note={gapsText(gaps)} actions={<WindowPicker window={window} board="overview" />}>
        <Problem text={error} />
        <Lines label="Goodput over time" data={data} series={SERIES} unit="requests/s" x="time" height={130} range={range} marks={marks} />
      </Card>
      <Card
        title="Events"
        note={`${count(events.length, "event")} known`}
        actions={
          <>
            <input className="search" type="search" placeholder="Model, node, word" aria-label="Search events" value={search} onChange={(event) => setSearch(event.target.value)} />
            <label className="check">
              <input type="checkbox" checked={level === "all"} onChange={(event) => setLevel(event.target.checked ? "all" : "important")} /> every step
            </label>
          </>
        }
      >
        <Problem text={earlier.error} />
        {lines.length === 0 && (earlier.data ? <Empty title="No event matches." /> : <Loading what="events" />)}
        <ol className="events">
          {lines.slice(0, most).map(({ event, more, pause }) => (
            <li key={event.id} className={pause === null ? "" : "after-pause"}>
              {pause !== null && <p className="pause">{span(pause)} without an event</p>}
              <time dateTime={new Date(event.at_ms).toISOString()} title={dateAndTime(event.at_ms)}>
                {clock(event.at_ms)}
              </time>
              <State state={event.state} title={`${event.kind}, event ${event.id}`} />
              <span>
                <Text event={event} />
                {more > 0 && <span className="muted"> (and {count(more, "time")} before)</span>}
              </span>
            </li>
          ))}
        </ol>
        {lines.length > most && (
          <button type="button" onClick={() => setMost(most + PAGE)}>
            Show {Math.min(PAGE, lines.length - most)} earlier
          </button>
        )}
      </Card>
    </div>
  );
}

/** The sentence of an event, with a link to what it is about. */
function Text({ event }: { event: EventView }) {
  const { subject } = event;
  let target = "";
  if (subject && "model" in subject) target = modelHref(subject.model.slice(0, subject.model.lastIndexOf(":")), Number(subject.model.slice(subject.model.lastIndexOf(":") + 1)));
  if (subject && "node" in subject) target = href(["placement"], { node: subject.node });
  if (subject && "device" in subject) target = href(["placement"], { device: subject.device });
  if (subject && "plan" in subject) target = href(["plans"], { plan: subject.plan });
  return (
    <>
      {event.text}{" "}
      {target !== "" && (
        <a className="small nowrap" href={target}>
          {subjectText(subject)}
        </a>
      )}
    </>
  );
}
