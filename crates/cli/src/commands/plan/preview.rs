//! The flags of `packhorse plan preview`.

use std::{collections::BTreeMap, str::FromStr};

use packhorse_api::{PlanPreviewRequest, PreviewDevices, PreviewModel};
use packhorse_cluster::{DeviceKind, Discipline, IdError, ModelName, Priority, RequestsPerSecond};
use packhorse_terminal::policy_options::PolicyOptionArgs;

use crate::commands::arguments::{ModelReference, parse_model, parse_rate};

#[derive(clap::Args)]
pub(super) struct PreviewArgs {
    /// Placement policy [default: the configured policy]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Dispatch discipline that the policy assumes [default: the configured discipline]
    #[arg(long, value_name = "DISCIPLINE")]
    discipline: Option<Discipline>,
    #[command(flatten)]
    options: PolicyOptionArgs,
    /// Devices to add, for instance H200:2; may be repeated
    #[arg(long, value_name = "KIND:COUNT", value_parser = parse_devices)]
    add_device: Vec<PreviewDevices>,
    /// Devices to take away, for instance V100:1; may be repeated
    #[arg(long, value_name = "KIND:COUNT", value_parser = parse_devices)]
    remove_device: Vec<PreviewDevices>,
    /// Model to add, with the profiles, the rate and the SLO of a registered one, for instance second=resnet50; may be repeated
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_added_model)]
    add_model: Vec<(ModelName, ModelName)>,
    /// Another rate of a registered or added model, in requests per second; may be repeated
    #[arg(long, value_name = "MODEL=RATE", value_parser = assignment(parse_rate))]
    rate: Vec<(ModelReference, RequestsPerSecond)>,
    /// Another SLO of a registered or added model, in milliseconds; may be repeated
    #[arg(long, value_name = "MODEL=MS", value_parser = assignment(|ms| ms.parse::<f64>().map_err(|e| e.to_string())))]
    slo_ms: Vec<(ModelReference, f64)>,
    /// Another priority of a registered or added model, 0 to 9; may be repeated
    #[arg(long, value_name = "MODEL=N", value_parser = parse_priority)]
    priority: Vec<(ModelName, Priority)>,
    /// Model to leave out; may be repeated
    #[arg(long, value_name = "MODEL")]
    remove: Vec<ModelName>,
    /// Explain what would limit each model that is not fully served, and which changes would suffice
    #[arg(long)]
    explain: bool,
}

fn parse_devices(text: &str) -> Result<PreviewDevices, String> {
    let (kind, count) = text.split_once(':').unwrap_or((text, "1"));
    let count = count
        .parse()
        .ok()
        .filter(|count| *count >= 0)
        .ok_or_else(|| format!("{count:?} is not a number of devices"))?;
    let kind = DeviceKind::from_str(kind).map_err(|e| e.to_string())?;
    Ok(PreviewDevices { kind, count })
}

fn parse_added_model(text: &str) -> Result<(ModelName, ModelName), String> {
    let (added, like) = text.split_once('=').ok_or("expected NAME=MODEL")?;
    let parse = |name: &str| name.parse().map_err(|e: IdError| e.to_string());
    Ok((parse(added)?, parse(like)?))
}

/// Parses a priority, which all versions of a model have.
fn parse_priority(text: &str) -> Result<(ModelName, Priority), String> {
    let (model, priority) = text.split_once('=').ok_or("expected MODEL=N")?;
    let model = model.parse().map_err(|e: IdError| e.to_string())?;
    let priority = priority.parse::<Priority>().map_err(|e| e.to_string())?;
    Ok((model, priority))
}

/// Returns a parser of MODEL=VALUE.
fn assignment<T>(
    parse_value: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<(ModelReference, T), String> + Clone {
    move |text: &str| {
        let (model, value) = text.split_once('=').ok_or("expected MODEL=VALUE")?;
        let model = parse_model(model).map_err(|e| e.to_string())?;
        Ok((model, parse_value(value)?))
    }
}

impl PreviewArgs {
    pub(super) fn into_request(self) -> PlanPreviewRequest {
        let mut models: BTreeMap<ModelReference, PreviewModel> = BTreeMap::new();
        let mut change_model = |id: ModelReference, change: &dyn Fn(&mut PreviewModel)| {
            let (name, version) = id.clone();
            change(models.entry(id).or_insert(PreviewModel {
                name,
                version,
                slo_ms: None,
                rate_rps: None,
                priority: None,
                profile_of: None,
            }));
        };
        for (name, like) in self.add_model {
            change_model((name, None), &|model| model.profile_of = Some(like.clone()));
        }
        for (id, rate) in self.rate {
            change_model(id, &|model| model.rate_rps = Some(rate));
        }
        for (id, slo_ms) in self.slo_ms {
            change_model(id, &|model| model.slo_ms = Some(slo_ms));
        }
        for (name, priority) in self.priority {
            change_model((name, None), &|model| model.priority = Some(priority));
        }
        let removed = self.remove_device.into_iter();
        let removed = removed.map(|PreviewDevices { kind, count }| PreviewDevices {
            kind,
            count: -count,
        });
        PlanPreviewRequest {
            policy: self.policy,
            options: self.options.given(),
            discipline: self.discipline,
            models: models.into_values().collect(),
            remove: self.remove,
            devices: self.add_device.into_iter().chain(removed).collect(),
            explain: self.explain,
        }
    }
}
