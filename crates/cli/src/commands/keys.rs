//! `packhorse keys`: makes, lists, rotates and deletes API keys.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use packhorse_api::{CreatedKey, KeyModelLimit, KeyRequest, KeyRotation, KeyView, Scope};
use packhorse_terminal::{context::Context, output};

use super::arguments::parse_duration;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  packhorse keys create checkout --scope 'infer:minilm*' --rate-rps 100 > checkout.key
  packhorse keys create dashboard --scope read --expires-in 30d
  packhorse keys create batch --scope 'infer:*' --model-limit 'bert*=20,4' > batch.key
  packhorse keys rotate 1f3a5b7c --overlap 1h
  packhorse keys list")]
pub(crate) enum KeysCommand {
    /// Make a key, and print it; it is shown once
    #[command(
        after_help = "Example:\n  packhorse keys create checkout --scope 'infer:minilm*' --max-in-flight 32 > checkout.key"
    )]
    Create(CreateArgs),
    /// List all keys without their secrets
    #[command(visible_alias = "ls", after_help = "Example:\n  packhorse keys list")]
    List,
    /// Show a key without its secret
    #[command(after_help = "Example:\n  packhorse keys show 1f3a5b7c")]
    Show(KeyRef),
    /// Replace the secret of a key, and print the new key; it is shown once
    #[command(
        after_help = "Example:\n  packhorse keys rotate 1f3a5b7c --overlap 1h > checkout.key"
    )]
    Rotate(RotateArgs),
    /// Delete a key
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  packhorse keys delete 1f3a5b7c"
    )]
    Delete(KeyRef),
}

#[derive(clap::Args)]
pub(crate) struct CreateArgs {
    /// Name, for people
    name: String,
    /// Permission: infer:PATTERN (names of models; * and ? match), read or admin; may be given more than once
    #[arg(long = "scope", required = true, value_name = "SCOPE")]
    scopes: Vec<Scope>,
    /// Time after which the key is not valid any more, such as 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires_in: Option<Duration>,
    /// Most inference requests per second
    #[arg(long, value_name = "RATE")]
    rate_rps: Option<f64>,
    /// Most inference requests at the same time
    #[arg(long, value_name = "COUNT")]
    max_in_flight: Option<u32>,
    /// Limit for the models of a pattern, beside those of the key: requests per second, requests at the same time, or both; may be given more
    /// than once
    #[arg(long = "model-limit", value_name = "PATTERN=RATE,COUNT", value_parser = parse_model_limit)]
    model_limits: Vec<KeyModelLimit>,
}

/// Parses a limit such as `resnet*=100,32`, of which either number may be missing.
fn parse_model_limit(text: &str) -> Result<KeyModelLimit, String> {
    const EXPECTED: &str = "expected PATTERN=RATE,COUNT, PATTERN=RATE or PATTERN=,COUNT";
    let (model, limits) = text.split_once('=').ok_or(EXPECTED)?;
    let (rate, count) = limits.split_once(',').unwrap_or((limits, ""));
    let limit = KeyModelLimit {
        model: model.to_owned(),
        rate_rps: given(rate).map_err(|_| EXPECTED)?,
        max_in_flight: given(count).map_err(|_| EXPECTED)?,
    };
    let limits = limit.rate_rps.is_some() || limit.max_in_flight.is_some();
    limits.then_some(limit).ok_or_else(|| EXPECTED.to_owned())
}

/// Parses a number that may be missing.
fn given<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    (!text.is_empty()).then(|| text.parse()).transpose()
}

#[derive(clap::Args)]
pub(crate) struct KeyRef {
    /// Identity of the key: the eight characters after phk_
    id: String,
}

#[derive(clap::Args)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    key: KeyRef,
    /// Time for which the former key stays valid, such as 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    overlap: Duration,
}

impl KeysCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        match self {
            Self::Create(args) => print_created(context, &admin.create_key(&args.request()).await?),
            Self::List => {
                let keys = admin.keys().await?;
                if context.json() {
                    output::print_json(&keys)
                } else {
                    print_list(&keys)
                }
            }
            Self::Show(key) => {
                let view = admin.key(&key.id).await?;
                if context.json() {
                    output::print_json(&view)
                } else {
                    print_list(&[view])
                }
            }
            Self::Rotate(args) => {
                let overlap_s = u32::try_from(args.overlap.as_secs()).unwrap_or(u32::MAX);
                let rotation = KeyRotation { overlap_s };
                print_created(context, &admin.rotate_key(&args.key.id, rotation).await?)
            }
            Self::Delete(key) => {
                admin.delete_key(&key.id).await?;
                if context.json() {
                    return output::print_json(&serde_json::json!({ "deleted": key.id }));
                }
                Ok(output::print_line(format!("deleted {}", key.id))?)
            }
        }
    }
}

impl CreateArgs {
    #[expect(
        clippy::disallowed_methods,
        reason = "the key ends at a time of the wall clock"
    )]
    fn request(self) -> KeyRequest {
        let expires = self.expires_in.map(|time| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let expires = now.unwrap_or_default().saturating_add(time);
            i64::try_from(expires.as_millis()).unwrap_or(i64::MAX)
        });
        KeyRequest {
            name: self.name,
            scopes: self.scopes,
            expires_at_ms: expires,
            rate_rps: self.rate_rps,
            max_in_flight: self.max_in_flight,
            model_limits: self.model_limits,
        }
    }
}

/// Prints the key alone, so that it can be written to a file.
fn print_created(context: &Context, created: &CreatedKey) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(created);
    }
    Ok(output::print_line(&created.key)?)
}

/// Returns limits for single models as they are given.
fn model_limits(limits: &[KeyModelLimit]) -> String {
    let text = limits.iter().map(|limit| {
        let rate = limit
            .rate_rps
            .map(output::format_number)
            .unwrap_or_default();
        let count = limit
            .max_in_flight
            .map(|count| format!(",{count}"))
            .unwrap_or_default();
        format!("{}={rate}{count}", limit.model)
    });
    text.collect::<Vec<_>>().join(" ")
}

fn print_list(keys: &[KeyView]) -> anyhow::Result<()> {
    let header = [
        "ID",
        "NAME",
        "SCOPES",
        "RATE/S",
        "IN FLIGHT",
        "MODEL LIMITS",
        "EXPIRES",
        "LAST USED",
    ];
    let mut table = output::new_table(&header);
    for key in keys {
        let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
        let time = |unix_ms: Option<i64>| {
            let format = |unix_ms: i64| output::format_time(unix_ms.max(0).cast_unsigned());
            unix_ms.map_or_else(|| "never".to_owned(), format)
        };
        let limit = |limit: Option<String>| limit.unwrap_or_else(|| "no limit".to_owned());
        table.add_row([
            key.id.clone(),
            key.name.clone(),
            scopes.join(", "),
            limit(key.rate_rps.map(output::format_number)),
            limit(key.max_in_flight.map(|limit| limit.to_string())),
            model_limits(&key.model_limits),
            time(key.expires_at_ms),
            time(key.last_used_at_ms),
        ]);
    }
    Ok(output::print_table(&table, "no keys")?)
}
