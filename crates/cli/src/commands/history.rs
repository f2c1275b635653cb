//! `packhorse history`: the last day of a model, a device or all models.

use packhorse_api::{DevicePoint, HistoryView, RequestPoint};
use packhorse_client::WhichHistory;
use packhorse_cluster::{DeviceId, ModelName, ModelVersion};
use packhorse_terminal::{
    context::Context,
    output::{self, format_number, format_number_or_dash, format_time},
};

use super::arguments::parse_moment;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse history --model resnet50 --since 2h\n  packhorse history --since 24h --step 3600\n  packhorse history --device node1/gpu0 --json"
)]
pub(crate) struct HistoryArgs {
    /// The model; all models together if neither it nor a device is given
    #[arg(long, value_name = "NAME", conflicts_with = "device")]
    model: Option<ModelName>,
    /// The version of this model; all together if absent
    #[arg(long, value_name = "NUMBER", requires = "model")]
    version: Option<ModelVersion>,
    /// The device, as its node and its name there
    #[arg(long, value_name = "NODE/DEVICE")]
    device: Option<DeviceId>,
    /// Begin: how long ago it is, such as 10m, or the time, such as 2026-11-29T16:12:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment, default_value = "1h")]
    since: i64,
    /// End; now if absent
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<i64>,
    /// Length of a step in seconds: a multiple of 10, from 60 on for times more than an hour ago; chosen for at most 400 steps if absent
    #[arg(long, value_name = "SECONDS")]
    step: Option<u64>,
}

impl HistoryArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let which = WhichHistory {
            model: self.model,
            version: self.version,
            device: self.device,
            since: self.since,
            until: self.until,
            step_s: self.step,
        };
        let view = context.admin()?.history(&which).await?;
        if context.json() {
            return output::print_json(&view);
        }
        let (requests, device) = (rows(&view.requests, &view), rows(&view.device, &view));
        if which.device.is_some() {
            print("COMPUTES,UTILISATION,MEMORY MIB", device)?;
        } else {
            print(
                "OFFERED/S,IN TIME/S,LATE,REFUSED,FAILED,P50 MS,P99 MS",
                requests,
            )?;
        }
        for mark in &view.marks {
            output::print_line(format!("{}  {}", format_time(mark.at_ms), mark.text))?;
        }
        Ok(())
    }
}

/// A step in the table.
trait Row {
    fn at_ms(&self) -> u64;
    fn plan(&self) -> Option<u64>;
    fn cells(&self) -> Vec<String>;
}

impl Row for RequestPoint {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn plan(&self) -> Option<u64> {
        self.plan
    }

    fn cells(&self) -> Vec<String> {
        let rate = |count: u64| format_number(count as f64 / self.covered_s.max(1e-3));
        let [late, refused, failed] =
            [self.late, self.refused, self.failed].map(|count| count.to_string());
        vec![
            rate(self.offered),
            rate(self.in_time),
            late,
            refused,
            failed,
            format_number_or_dash(self.p50_ms),
            format_number_or_dash(self.p99_ms),
        ]
    }
}

impl Row for DevicePoint {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn plan(&self) -> Option<u64> {
        self.plan
    }

    fn cells(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        vec![
            percent(self.busy),
            self.utilization.map_or_else(|| "-".to_owned(), percent),
            (self.memory_bytes >> 20).to_string(),
        ]
    }
}

/// Returns the rows of the steps, and one for each gap between them.
fn rows(points: &[impl Row], view: &HistoryView) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut next: Option<u64> = None;
    for point in points {
        if let Some(next) = next.filter(|next| point.at_ms() > *next) {
            let seconds = (point.at_ms() - next) / 1000;
            rows.push(vec![format_time(next), format!("gap of {seconds} s")]);
        }
        let plan = point
            .plan()
            .map_or_else(|| "-".to_owned(), |plan| plan.to_string());
        rows.push([vec![format_time(point.at_ms()), plan], point.cells()].concat());
        next = Some(point.at_ms() + view.step_s * 1000);
    }
    rows
}

fn print(columns: &str, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let header: Vec<&str> = ["TIME", "PLAN"]
        .into_iter()
        .chain(columns.split(','))
        .collect();
    let mut table = output::new_table(&header);
    for row in rows {
        table.add_row(row);
    }
    Ok(output::print_table(
        &table,
        "nothing is known of this time",
    )?)
}
