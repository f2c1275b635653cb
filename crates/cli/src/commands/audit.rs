//! `packhorse audit`: what admins did.

use packhorse_api::{AuditActor, AuditEntry};
use packhorse_terminal::{
    context::Context,
    output::{self, format_time},
};
use serde_json::Value;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse audit\n  packhorse audit --before 4711 --limit 1000 --json"
)]
pub(crate) struct AuditArgs {
    /// Show only acts before the one with this number
    #[arg(long, value_name = "ID")]
    before: Option<u64>,
    /// Largest number of acts to show, the newest first
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

impl AuditArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let entries = admin.audit(self.before, self.limit.into()).await?;
        if context.json() {
            return output::print_json(&entries);
        }
        let header = ["ID", "TIME", "WHO", "FROM", "ACT", "SUBJECT", "CHANGE"];
        let mut table = output::new_table(&header);
        for entry in &entries {
            table.add_row(row(entry));
        }
        Ok(output::print_line(output::table_text(&table))?)
    }
}

fn row(entry: &AuditEntry) -> [String; 7] {
    [
        entry.id.to_string(),
        format_time(entry.at_ms.unsigned_abs()),
        who(&entry.actor),
        entry.actor.address.clone().unwrap_or_default(),
        entry.action.clone(),
        entry.subject.clone().unwrap_or_default(),
        change(&entry.change),
    ]
}

/// Returns the name of an actor, with its key and whether the dashboard acted for it.
fn who(actor: &AuditActor) -> String {
    let key = actor.key_id.as_ref().map(|id| format!("key {id}"));
    let session = actor.session.then(|| "dashboard".to_owned());
    let more: Vec<String> = key.into_iter().chain(session).collect();
    if more.is_empty() {
        actor.name.clone()
    } else {
        format!("{} ({})", actor.name, more.join(", "))
    }
}

/// Returns the fields of a change in a line.
fn change(change: &Value) -> String {
    let fields = change.as_object().into_iter().flatten();
    let fields = fields.filter(|(_, value)| !value.is_null());
    let fields = fields.map(|(name, value)| format!("{name} {value}"));
    fields.collect::<Vec<_>>().join(", ")
}
