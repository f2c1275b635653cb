//! Counts of requests over time: what became of those that came due within each second.

use packhorse_cluster::{ModelIndex, Time};

use crate::{
    Scenario,
    report::{DeviceCounts, model_name},
};

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The counts of each second, in the scenario's order of models.
    seconds: Vec<Vec<Counts>>,
    /// The numbers of devices of an autoscaler, from the second on in which they changed.
    devices: Vec<(usize, DeviceCounts)>,
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
/// The further columns of a run with an autoscaler.
const DEVICE_HEADER: &str = ",devices,devices_needed";

impl Timeline {
    /// Counts a request that came due at `due` and has ended.
    pub fn count(&mut self, model: ModelIndex, due: Time, end: RequestEnd) {
        let second = second(due);
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

    /// Notes the numbers of devices from now on.
    pub(crate) fn devices_changed(&mut self, now: Time, counts: DeviceCounts) {
        self.devices.push((second(now), counts));
    }

    /// Returns the counts as CSV, a row for each second and model with requests: `t_s`, the second since the start of the run; `model`;
    /// `offered`, the sum of the others; `within_slo`; `late`; `dropped`; `lost`. With an autoscaler also `devices`, those of its kind that
    /// take replicas at the end of the second, and `devices_needed`, empty before it is known.
    pub fn to_csv(&self, scenario: &Scenario) -> String {
        let mut rows = vec![HEADER.to_owned()];
        if !self.devices.is_empty() {
            rows[0].push_str(DEVICE_HEADER);
        }
        for (second, models) in self.seconds.iter().enumerate() {
            let known = self.devices.partition_point(|(from, _)| *from <= second);
            let devices = known.checked_sub(1).map(|last| self.devices[last].1);
            let devices = devices.map_or_else(String::new, |counts| {
                let needed = counts.needed.map(|needed| needed.to_string());
                format!(",{},{}", counts.have, needed.unwrap_or_default())
            });
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
                        "{second},{name},{offered},{within_slo},{late},{dropped},{lost}{devices}"
                    ));
                }
            }
        }
        rows.push(String::new());
        rows.join("\n")
    }
}

fn second(time: Time) -> usize {
    usize::try_from(time.as_nanos() / 1_000_000_000).expect("a run is limited")
}
