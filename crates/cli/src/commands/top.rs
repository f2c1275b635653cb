//! `packhorse top`: the load of the models and what is wrong, again and again.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    time::Duration,
};

use anyhow::Context as _;
use comfy_table::ContentArrangement;
use console::{Term, truncate_str};
use packhorse_api::{
    GoodputView, ModelGoodput, ModelView,
    events::{Finding, Severity},
};
use packhorse_client::{AdminClient, CallError};
use packhorse_cluster::{ModelName, ModelVersion, NodeState, ReplicaState};
use packhorse_terminal::{
    context::Context,
    count,
    output::{self, Colour, format_number, format_number_or_dash, format_time, paint},
    versioned_name,
};
use serde::Serialize;
use tokio::{signal, time};

use super::arguments::parse_duration;

/// The length of the window of rates and latencies, in seconds.
const WINDOW_S: u32 = 10;
/// The length of the window of the error budget, in seconds.
const BUDGET_WINDOW_S: u32 = 300;
/// The part of the requests that may miss their SLO.
const BUDGET: f64 = 0.01;
/// The largest number of findings that are shown.
const MAX_FINDINGS: usize = 5;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse top\n  packhorse top --model bert --interval 5s\n  packhorse top --count 1 --json\n\nThe models that have used most of their error budget come first: of the requests that ended in the last 5 minutes, 1 % may miss their SLO."
)]
pub(crate) struct TopArgs {
    /// Show only models whose names contain this
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    model: String,
    /// Time from one look to the next
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    interval: Duration,
    /// Number of looks after which to end [default: none]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err("expected 100ms or more".to_owned());
    }
    Ok(interval)
}

/// The cluster at one time.
#[derive(Serialize)]
struct Look {
    at_ms: u64,
    offered_rps: f64,
    goodput_rps: f64,
    nodes: usize,
    lost_nodes: usize,
    models: Vec<Row>,
    findings: Vec<Finding>,
}

/// A model at one time.
#[derive(Serialize)]
struct Row {
    name: ModelName,
    version: ModelVersion,
    state: String,
    offered_rps: f64,
    goodput_rps: f64,
    /// Those that were late, refused, lost or failed.
    missed_rps: f64,
    p99_ms: Option<f64>,
    slo_ms: f64,
    /// The part of the error budget that was used, in percent; more than 100 if it is overdrawn. None without requests.
    budget_used_pct: Option<f64>,
    ready_replicas: usize,
    replicas: usize,
}

impl TopArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        tokio::select! {
            watched = self.watch(&admin, context.json()) => watched,
            ended = signal::ctrl_c() => Ok(ended?),
        }
    }

    /// Looks until it was often enough. An error at the first look ends it; later ones are shown until the gateway answers again.
    async fn watch(&self, admin: &AdminClient, json: bool) -> anyhow::Result<()> {
        let mut screen = Screen::new(!json && io::stdout().is_terminal());
        let mut ticks = time::interval(self.interval);
        for number in 0..self.count.unwrap_or(u32::MAX) {
            ticks.tick().await;
            match look(admin, &self.model).await {
                Ok(look) if json => output::print_line(serde_json::to_string(&look)?)?,
                Ok(look) => screen.show(&text(&look, screen.rows()))?,
                Err(error) if number == 0 || self.count == Some(number + 1) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    let text = format!("{error:#}; trying again");
                    if json {
                        output::note(text);
                    } else {
                        screen.show(&text)?;
                    }
                }
            }
        }
        Ok(())
    }
}

async fn look(admin: &AdminClient, part: &str) -> Result<Look, CallError> {
    let (nodes, models, now, budget, findings) = tokio::try_join!(
        admin.nodes(),
        admin.models(),
        admin.goodput(WINDOW_S),
        admin.goodput(BUDGET_WINDOW_S),
        admin.findings(),
    )?;
    Ok(Look {
        at_ms: output::now_ms(),
        offered_rps: now.total.offered_rps,
        goodput_rps: now.total.goodput_rps,
        nodes: nodes.len(),
        lost_nodes: nodes
            .iter()
            .filter(|node| node.state == NodeState::Lost)
            .count(),
        models: rows(&models, &now, &budget, part),
        findings,
    })
}

/// Returns the models whose names contain `part`: those with the least left of their budgets first, then those with the most requests.
fn rows(models: &[ModelView], now: &GoodputView, budget: &GoodputView, part: &str) -> Vec<Row> {
    let by_id = |view: &GoodputView| -> BTreeMap<(ModelName, ModelVersion), ModelGoodput> {
        let models = view.models.iter();
        models
            .map(|one| ((one.name.clone(), one.version), one.clone()))
            .collect()
    };
    let (now, budget) = (by_id(now), by_id(budget));
    let shown = models
        .iter()
        .filter(|model| model.name.as_str().contains(part));
    let mut rows: Vec<Row> = shown
        .map(|model| {
            let id = (model.name.clone(), model.version);
            let now = now.get(&id);
            let in_time = budget.get(&id).and_then(ModelGoodput::share_in_time);
            let replicas = &model.replicas;
            let is_ready = |state: Option<ReplicaState>| state == Some(ReplicaState::Ready);
            Row {
                name: model.name.clone(),
                version: model.version,
                state: output::state_name(&model.state),
                offered_rps: now.map_or(0.0, |now| now.offered_rps),
                goodput_rps: now.map_or(0.0, |now| now.goodput_rps),
                missed_rps: now.map_or(0.0, |now| now.refused_rps + now.late_rps + now.failed_rps),
                p99_ms: now.and_then(|now| now.p99_ms),
                slo_ms: model.slo_ms,
                budget_used_pct: in_time.map(|in_time| 100.0 * (1.0 - in_time) / BUDGET),
                ready_replicas: replicas.iter().filter(|one| is_ready(one.state)).count(),
                replicas: replicas.len(),
            }
        })
        .collect();
    let used = |row: &Row| row.budget_used_pct.unwrap_or(-1.0);
    rows.sort_by(|a, b| {
        let by_load = || b.offered_rps.total_cmp(&a.offered_rps);
        let by_name = || (&a.name, a.version).cmp(&(&b.name, b.version));
        used(b)
            .total_cmp(&used(a))
            .then_with(by_load)
            .then_with(by_name)
    });
    rows
}

/// Returns the look as text of at most as many lines.
fn text(look: &Look, most: Option<usize>) -> String {
    let nodes = match look.lost_nodes {
        0 => count(look.nodes, "node"),
        lost => paint(
            &format!("{lost} of {} lost", count(look.nodes, "node")),
            Colour::Red,
        ),
    };
    let mut lines = vec![format!(
        "{}  {}/s in time of {}/s, {nodes}, {}, {}",
        format_time(look.at_ms),
        format_number(look.goodput_rps),
        format_number(look.offered_rps),
        count(look.models.len(), "model"),
        count(look.findings.len(), "finding"),
    )];
    let shown = most.map_or(MAX_FINDINGS, |most| (most / 3).clamp(1, MAX_FINDINGS));
    for finding in look.findings.iter().take(shown) {
        let colour = match finding.severity {
            Severity::Critical => Colour::Red,
            Severity::Warning | Severity::Info => Colour::Yellow,
        };
        let severity = finding.severity.to_string();
        lines.push(format!("{}  {}", paint(&severity, colour), finding.text));
    }
    if let Some(more) = look
        .findings
        .len()
        .checked_sub(shown)
        .filter(|more| *more > 0)
    {
        lines.push(format!(
            "and {}: packhorse findings",
            count(more, "more finding")
        ));
    }
    lines.push(String::new());
    let header = [
        "MODEL",
        "STATE",
        "OFFERED/S",
        "GOODPUT/S",
        "MISSED/S",
        "P99 MS",
        "SLO MS",
        "BUDGET USED %",
        "REPLICAS",
    ];
    let mut table = output::new_table(&header);
    // A terminal cuts its lines.
    table.set_content_arrangement(ContentArrangement::Disabled);
    let room = most.map_or(usize::MAX, |most| {
        most.saturating_sub(lines.len() + 2).max(1)
    });
    for row in look.models.iter().take(room) {
        let used = format_number_or_dash(row.budget_used_pct.map(f64::round));
        let is_late = row.p99_ms.is_some_and(|p99| p99 > row.slo_ms);
        let red = |text: String, is_bad: bool| {
            if is_bad {
                paint(&text, Colour::Red)
            } else {
                text
            }
        };
        table.add_row([
            versioned_name(&row.name, row.version),
            row.state.clone(),
            format_number(row.offered_rps),
            format_number(row.goodput_rps),
            red(format_number(row.missed_rps), row.missed_rps > 0.0),
            red(format_number_or_dash(row.p99_ms), is_late),
            format_number(row.slo_ms),
            red(used, row.budget_used_pct.is_some_and(|used| used > 100.0)),
            format!("{}/{}", row.ready_replicas, row.replicas),
        ]);
    }
    lines.push(output::table_text(&table));
    if let Some(more) = look.models.len().checked_sub(room).filter(|more| *more > 0) {
        lines.push(format!("and {}", count(more, "more model")));
    }
    lines.join("\n")
}

/// Standard output: a terminal that is drawn again and again, or lines.
struct Screen {
    terminal: Option<Term>,
    is_used: bool,
}

impl Screen {
    fn new(is_drawn: bool) -> Self {
        Self {
            terminal: is_drawn.then(Term::buffered_stdout),
            is_used: false,
        }
    }

    /// Returns the lines that there is room for; `None` if there is no end.
    fn rows(&self) -> Option<usize> {
        let terminal = self.terminal.as_ref()?;
        // The last line stays empty: what ends there would scroll.
        Some(usize::from(terminal.size().0).saturating_sub(1).max(1))
    }

    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        let is_first = !std::mem::replace(&mut self.is_used, true);
        let Some(terminal) = &self.terminal else {
            let gap = if is_first { "" } else { "\n" };
            return Ok(output::print_line(format!("{gap}{text}"))?);
        };
        let drawn = || -> io::Result<()> {
            if is_first {
                terminal.hide_cursor()?;
                terminal.clear_screen()?;
            }
            terminal.move_cursor_to(0, 0)?;
            let (rows, columns) = terminal.size();
            for line in text
                .lines()
                .take(usize::from(rows).saturating_sub(1).max(1))
            {
                terminal.clear_line()?;
                terminal.write_line(&truncate_str(line, columns.into(), "…"))?;
            }
            terminal.clear_to_end_of_screen()?;
            terminal.flush()
        };
        drawn().context("cannot draw on the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.is_used) {
            // There is nobody to tell.
            let _ = terminal.show_cursor();
            let _ = terminal.flush();
        }
    }
}
