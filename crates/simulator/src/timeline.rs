//! Counts of requests over time: what became of those that came due within each second.

use packhorse_cluster::{ModelIndex, Time};

use crate::{Scenario, report::model_name};

/// The end of a request, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// Answered within the SLO.
    WithinSlo,
    /// Answered after the SLO.
    Late,
    /// Refused, or expired in the queue.
    Dropped,
    /// Without an answer for another reason, such as a lost worker.
    Lost,
}

/// The number of requests by second and model.
///
/// A request counts in the second in which it came due, whenever it ended, so that each second's ends add up to its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The counts of each second, in the scenario's order of models.
    seconds: Vec<Vec<Counts>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    within_slo: u64,
    late: u64,
    dropped: u64,
    lost: u64,
}

/// The columns of the CSV.
const HEADER: &str = "t_s,model,offered,within_slo,late,dropped,lost";

impl Timeline {
    /// Counts a request that came due at `due` and has ended.
    pub fn count(&mut self, model: ModelIndex, due: Time, end: RequestEnd) {
        let second = usize::try_from(due.as_nanos() / 1_000_000_000).expect("a run is limited");
        if self.seconds.len() <= second {
            self.seconds.resize_with(second + 1, Vec::new);
        }
        let models = &mut self.seconds[second];
        if models.len() <= model.0 {
            models.resize_with(model.0 + 1, Counts::default);
        }
        let counts = &mut models[model.0];
        *match end {
            RequestEnd::WithinSlo => &mut counts.within_slo,
            RequestEnd::Late => &mut counts.late,
            RequestEnd::Dropped => &mut counts.dropped,
            RequestEnd::Lost => &mut counts.lost,
        } += 1;
    }

    /// Returns the counts as CSV, a row for each second and model with requests: `t_s`, the second since the start of the run; `model`;
    /// `offered`, the sum of the others; `within_slo`; `late`; `dropped`; `lost`.
    pub fn to_csv(&self, scenario: &Scenario) -> String {
        let mut rows = vec![HEADER.to_owned()];
        for (second, models) in self.seconds.iter().enumerate() {
            for (counts, model) in models.iter().zip(&scenario.problem.models) {
                let Counts {
                    within_slo,
                    late,
                    dropped,
                    lost,
                } = counts;
                let offered = within_slo + late + dropped + lost;
                if offered > 0 {
                    let name = model_name(&model.id);
                    rows.push(format!(
                        "{second},{name},{offered},{within_slo},{late},{dropped},{lost}"
                    ));
                }
            }
        }
        rows.push(String::new());
        rows.join("\n")
    }
}
