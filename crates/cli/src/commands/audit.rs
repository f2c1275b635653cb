//! `packhorse audit`: what admins did.

use packhorse_api::{AuditActor, AuditEntry};
use packhorse_client::ListedActs;
use packhorse_terminal::{
    context::Context,
    output::{self, format_time},
};

use super::arguments::parse_moment;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse audit\n  packhorse audit --subject resnet50 --since 2d\n  packhorse audit --who deploy --act model --limit 5000 --json"
)]
pub(crate) struct AuditArgs {
    /// Show only acts before the one with this number
    #[arg(long, value_name = "ID")]
    before: Option<u64>,
    /// Show only acts about this model, in all its versions or as NAME:VERSION, or about this node, key or file
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Show only acts of who has this name, or of the key with this id
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Show only this act, such as model.promote, or all acts of a kind, such as model
    #[arg(long, value_name = "ACT")]
    act: Option<String>,
    /// Show only acts that did not happen before this time: how long ago it is, such as 2d, or the time, such as 2026-11-29T16:12:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<i64>,
    /// Show only acts that had happened by this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<i64>,
    /// Largest number of acts to show, the newest first; the gateway keeps 100000
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

impl AuditArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let which = ListedActs {
            before: self.before,
            subject: self.subject,
            actor: self.who,
            action: self.act,
            since: self.since,
            until: self.until,
            limit: self.limit as usize,
        };
        let entries = context.admin()?.audit(&which).await?;
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
        change(entry),
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

/// Returns the fields of a change in a line, with what they replaced.
fn change(entry: &AuditEntry) -> String {
    let fields = entry.change.as_object().into_iter().flatten();
    let fields = fields.filter_map(|(name, new)| {
        let old = entry.before.as_ref().and_then(|before| before.get(name));
        match old {
            Some(old) => Some(format!("{name} {old} → {new}")),
            None if new.is_null() => None,
            None => Some(format!("{name} {new}")),
        }
    });
    fields.collect::<Vec<_>>().join(", ")
}
