/** A finding: what is wrong, since when, why, the numbers that show it, and what would help. */

import type { Finding } from "../api/types";
import { count } from "../format";
import { markTime } from "../history";
import { pageOf, subjectHref, type TimeSpan } from "../incidents";
import type { Tone } from "./parts";
import { href } from "./route";

export const SEVERITY: Record<Finding["severity"], Tone> = { critical: "bad", warning: "warn", info: "busy" };

/** The evidence of one that is over, or alone on its page, is open. */
export function FindingCard({ finding, span, end, open = false }: { finding: Finding; span: TimeSpan; end?: number | null; open?: boolean }) {
  const target = subjectHref(finding.subject, span);
  // A cure of what is over changes nothing.
  const tryOut = end ? null : finding.cure?.preview;
  return (
    <article className={`finding ${finding.severity}`}>
      <span className={`tag ${SEVERITY[finding.severity]}`}>{finding.severity}</span>
      <div>
        <p className="what">{finding.text}</p>
        <p className="cause">
          <When finding={finding} end={end} />
          {finding.cause}
        </p>
        {finding.cure && <p className="cure">Cure: {finding.cure.text}</p>}
        <Evidence finding={finding} span={span} open={open} />
      </div>
      <span className="actions">
        {tryOut && (
          <a className="button primary" href={href(["plans"], { whatif: JSON.stringify(tryOut) })}>
            Try it
          </a>
        )}
        {target && (
          <a className="button" href={target}>
            Show
          </a>
        )}
      </span>
    </article>
  );
}

function When({ finding, end }: { finding: Finding; end?: number | null | undefined }) {
  if (finding.since_ms == null) return null;
  const now = Date.now();
  const begin = markTime(finding.since_ms, now);
  return <>{end ? `${begin} to ${markTime(end, now)}: ` : `Since ${begin}: `}</>;
}

function Evidence({ finding, span, open }: { finding: Finding; span: TimeSpan; open: boolean }) {
  const { evidence = [] } = finding;
  if (evidence.length === 0) return null;
  return (
    <details className="evidence" open={open}>
      <summary>{count(evidence.length, "number")} that {evidence.length === 1 ? "shows" : "show"} it</summary>
      <ul>
        {evidence.map(({ text, route }) => {
          const page = route ? pageOf(route, span) : null;
          return <li key={text}>{page ? <a href={page}>{text}</a> : text}</li>;
        })}
      </ul>
    </details>
  );
}
