import type { RequestStages } from "../api/types";
import { ms } from "../format";
import { STAGES } from "../requests";

/** Where the time of a request went, as one bar with a legend. */
export function Stages({ stages, label }: { stages: RequestStages; label: string }) {
  const total = STAGES.reduce((sum, { key }) => sum + stages[key], 0) || 1;
  const text = STAGES.filter(({ key }) => stages[key] > 0).map(({ key, name }) => `${name} ${ms(stages[key])}`).join(", ");
  return (
    <div>
      <div className="stages" role="img" aria-label={`${label}: ${text}`}>
        {STAGES.map(({ key, name }, i) => (
          <span key={key} className={`k${i}`} style={{ width: `${(stages[key] / total) * 100}%` }} title={`${name}: ${ms(stages[key])}`} />
        ))}
      </div>
      <ul className="keys">
        {STAGES.map(({ key, name, meaning }, i) => (
          <li key={key} title={meaning}>
            <i className={`k${i}`} /> {name} <span className="mono">{ms(stages[key])}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
