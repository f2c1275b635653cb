//! `packhorse events`, `packhorse findings` and `packhorse incidents`: what happens in the cluster, what is wrong, and what was.

use packhorse_api::events::{
    EventState, EventView, Finding, Incident, IncidentFinding, Severity, Subject,
};
use packhorse_client::{EventMessage, Followed};
use packhorse_cluster::ModelName;
use packhorse_terminal::{
    context::Context,
    output::{self, Colour, format_time, paint},
};

use super::arguments::parse_moment;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse events\n  packhorse events --follow\n  packhorse events --since 4711 --json"
)]
pub(crate) struct EventsArgs {
    /// Wait for further events and show them as they happen; reconnects by itself
    #[arg(long, short)]
    follow: bool,
    /// Show only events after the one with this number
    #[arg(long, value_name = "ID")]
    since: Option<u64>,
    /// Number of events to show first
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  packhorse findings")]
pub(crate) struct FindingsArgs {}

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse incidents --open --json\n  packhorse incidents --since 2h --until 2026-11-29T16:12:00Z"
)]
pub(crate) struct IncidentsArgs {
    /// Show only those that are not over
    #[arg(long)]
    open: bool,
    /// Show only those that this model is part of
    #[arg(long, value_name = "NAME")]
    model: Option<ModelName>,
    /// Show only those that were not over before this time: how long ago it is, such as 10m, or the time, such as 2026-11-29T16:12:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<i64>,
    /// Show only those that had begun by this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<i64>,
}

impl EventsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let stored = admin
            .stored_events(self.since, usize::from(self.limit))
            .await?;
        if !self.follow {
            if context.json() {
                return output::print_json(&stored);
            }
            if stored.is_empty() {
                output::print_line("no events")?;
            }
        }
        for event in &stored {
            print(event, context.json())?;
        }
        if !self.follow {
            return Ok(());
        }
        let last = stored.last().map(|event| event.id).or(self.since);
        let mut follower = admin.follow_events(Some(last.unwrap_or(0))).await?;
        loop {
            match follower.next().await? {
                Followed::Message(EventMessage::Change(event)) => print(&event, context.json())?,
                Followed::Message(EventMessage::Snapshot(snapshot)) => {
                    if last.is_some() {
                        output::note(format_args!(
                            "some events are missing here; the next one has a number above {}",
                            snapshot.id
                        ));
                    }
                }
                Followed::Message(EventMessage::Goodput(_)) => {}
                Followed::Interrupted(Some(error)) => {
                    output::note(format_args!(
                        "{:#}; connecting again",
                        anyhow::Error::from(error)
                    ));
                }
                Followed::Interrupted(None) => {
                    output::note("the gateway has ended the stream; connecting again");
                }
                Followed::Resumed => output::note("connected again"),
            }
        }
    }
}

impl FindingsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let findings = context.admin()?.findings().await?;
        if context.json() {
            return output::print_json(&findings);
        }
        if findings.is_empty() {
            return Ok(output::print_line("nothing is wrong")?);
        }
        for finding in &findings {
            print_finding(finding)?;
        }
        Ok(())
    }
}

impl IncidentsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let listed = admin.incidents(self.model.as_ref(), self.since, self.until);
        let mut incidents = listed.await?;
        incidents.retain(|incident| !self.open || incident.end_ms.is_none());
        if context.json() {
            return output::print_json(&incidents);
        }
        if incidents.is_empty() {
            return Ok(output::print_line("no incidents")?);
        }
        for incident in &incidents {
            print_incident(incident)?;
        }
        Ok(())
    }
}

fn print_incident(incident: &Incident) -> anyhow::Result<()> {
    let end = |end: Option<u64>| end.map_or_else(|| "now".to_owned(), format_time);
    output::print_line(format!(
        "{:>4}  {}  {}  {} to {}{}",
        incident.id,
        paint(
            &incident.severity.to_string(),
            severity_colour(incident.severity)
        ),
        subject_text(incident.root.as_ref()),
        format_time(incident.since_ms),
        end(incident.end_ms),
        missed_text(incident),
    ))?;
    for IncidentFinding { finding, end_ms } in &incident.findings {
        let since = finding.since_ms.unwrap_or(incident.since_ms);
        output::print_line(format!(
            "      {} to {}  {}: {}",
            format_time(since),
            end(*end_ms),
            finding.text,
            finding.cause
        ))?;
    }
    Ok(())
}

/// Returns the number of requests that missed their SLO in an incident, and whose they were.
fn missed_text(incident: &Incident) -> String {
    const MAX_NAMED: usize = 3;
    let by_model = &incident.missed_by_model;
    let models = by_model.iter().take(MAX_NAMED);
    let mut models: Vec<String> = models
        .map(|one| format!("{} of {}", one.requests, one.model))
        .collect();
    let more = by_model.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        models.push(format!("{more} more models"));
    }
    match incident.missed_requests {
        0 => String::new(),
        1 => format!(", 1 request missed: {}", models.join(", ")),
        missed => format!(", {missed} requests missed: {}", models.join(", ")),
    }
}

/// Prints an event in one line: as JSON, or for people.
fn print(event: &EventView, json: bool) -> anyhow::Result<()> {
    if json {
        return Ok(output::print_line(serde_json::to_string(event)?)?);
    }
    let state = format!("{:<11}", output::state_name(&event.state));
    let reason = event.reason.as_deref();
    let reason = reason.filter(|reason| !reason.is_empty() && !event.text.contains(reason));
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    Ok(output::print_line(format!(
        "{}  {:>6}  {:<7}  {}  {}{reason}",
        format_time(event.at_ms),
        event.id,
        event.kind,
        paint(&state, colour(event.state)),
        event.text,
    ))?)
}

/// Returns the colour of a state: what is good, what is bad, and what is on its way.
fn colour(state: EventState) -> Colour {
    match state {
        EventState::Ready
        | EventState::Serving
        | EventState::Adopted
        | EventState::Completed
        | EventState::Cleared => Colour::Green,
        EventState::Unplaced
        | EventState::Failed
        | EventState::Lost
        | EventState::BackingOff
        | EventState::Ejected
        | EventState::Degraded
        | EventState::Raised => Colour::Red,
        EventState::Registered
        | EventState::Fetching
        | EventState::Profiling
        | EventState::Planning
        | EventState::Loading
        | EventState::Cordoned
        | EventState::Draining
        | EventState::Removed
        | EventState::Rerouted
        | EventState::Stopped
        | EventState::Proposed
        | EventState::Rejected
        | EventState::Rate
        | EventState::Latency
        | EventState::Slowdown
        | EventState::InputShapes => Colour::Yellow,
    }
}

fn severity_colour(severity: Severity) -> Colour {
    match severity {
        Severity::Critical => Colour::Red,
        Severity::Warning => Colour::Yellow,
        Severity::Info => Colour::Green,
    }
}

fn subject_text(subject: Option<&Subject>) -> String {
    subject.map_or_else(|| "cluster".to_owned(), ToString::to_string)
}

fn print_finding(finding: &Finding) -> anyhow::Result<()> {
    let colour = severity_colour(finding.severity);
    let subject = subject_text(finding.subject.as_ref());
    // What has its cause elsewhere stands under the finding of that.
    let indent = if finding.root.is_some() { "  " } else { "" };
    // Most texts say what they are about.
    let subject = if finding.subject.is_none() || finding.text.contains(&subject) {
        String::new()
    } else {
        format!("{subject}: ")
    };
    output::print_line(format!(
        "{indent}{}  {subject}{}",
        paint(&finding.severity.to_string(), colour),
        finding.text
    ))?;
    if let Some(since) = finding.since_ms {
        output::print_line(format!("{indent}  since: {}", format_time(since)))?;
    }
    output::print_line(format!("{indent}  cause: {}", finding.cause))?;
    for evidence in &finding.evidence {
        output::print_line(format!("{indent}  shown by: {}", evidence.text))?;
    }
    if let Some(cure) = &finding.cure {
        output::print_line(format!("{indent}  cure: {}", cure.text))?;
    }
    Ok(())
}
