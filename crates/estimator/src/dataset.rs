//! The published measurements to which the coefficients are fitted, and the error on models that were left out.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{DeviceKind, ModelId, Percent, Profile, ProfileRow, ProfileTable};
use serde::Deserialize;

use crate::{
    coefficients::{Coefficients, Group, Latency, Memory, Utilization},
    device_sheet::DeviceSheet,
    estimate::BatchOperators,
    fit::{Observation, fit},
    graph::OperatorGraph,
};

/// The weight of the priors against that of all measurements: a coefficient that is e times its prior costs as much as this number of
/// measurements that are wrong by a factor of e.
const RIDGE: f64 = 1.0;

/// A model whose operators and measurements are known.
pub struct MeasuredModel {
    /// The model's name.
    pub name: String,
    /// The name of the models that are left out together, because they have the same kind of layers.
    pub family: &'static str,
    /// The operators.
    pub graph: OperatorGraph,
    /// The measurements, and the operators of each measured batch.
    pub batches: Vec<(ProfileRow, BatchOperators)>,
}

/// A line of a file of operators.
#[derive(Deserialize)]
struct Line {
    model: String,
    graph: OperatorGraph,
}

/// Reads the operators of models, one JSON object with `model` and `graph` per line.
///
/// # Errors
/// If a line is no such object.
pub fn graphs(lines: &str) -> Result<BTreeMap<String, OperatorGraph>, serde_json::Error> {
    let parsed = lines.lines().map(serde_json::from_str::<Line>);
    parsed
        .map(|line| line.map(|line| (line.model, line.graph)))
        .collect()
}

/// Returns the models that have both operators and measurements on this kind of device, in the order of their names.
pub fn measured_models(
    graphs: &BTreeMap<String, OperatorGraph>,
    profiles: &ProfileTable,
    kind: &DeviceKind,
    sheet: &DeviceSheet,
) -> Vec<MeasuredModel> {
    let measured = graphs.iter().filter_map(|(name, graph)| {
        let id: ModelId = name.parse().ok()?;
        let rows = profiles.get(&id, kind).map(Profile::whole)?.iter();
        let batch = |row: &ProfileRow| (*row, BatchOperators::new(graph, sheet, row.batch_size));
        Some(MeasuredModel {
            name: name.clone(),
            family: family(name),
            graph: graph.clone(),
            batches: rows.map(batch).collect(),
        })
    });
    measured.collect()
}

/// Returns the family of a model of the thesis or of Clockwork's zoo.
fn family(name: &str) -> &'static str {
    const FAMILIES: [(&str, &str); 19] = [
        // The first that a name contains.
        ("resnext", "resnext"),
        ("wideresnet", "wideresnet"),
        ("pose", "pose"),
        ("inception", "inception"),
        ("googlenet", "inception"),
        ("resnest", "resnest"),
        ("resnet", "resnet"),
        ("densenet", "densenet"),
        ("xception", "xception"),
        ("alexnet", "alexnet"),
        ("vgg", "vgg"),
        ("mobilenet", "mobilenet"),
        ("efficientnet", "efficientnet"),
        ("bert", "bert"),
        ("bloom", "bloom"),
        ("gpt", "gpt"),
        ("t5", "t5"),
        ("xlnet", "xlnet"),
        ("", "other"),
    ];
    let found = FAMILIES.iter().find(|(part, _)| name.contains(part));
    found.map_or("other", |(_, family)| family)
}

/// A batch that was predicted from models of other families.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The model.
    pub model: String,
    /// Its family.
    pub family: &'static str,
    /// The rows of the batch.
    pub rows: u32,
    /// The measured value.
    pub measured: f64,
    /// The predicted value.
    pub predicted: f64,
}

impl Prediction {
    /// Returns the relative error; negative if the prediction is too low.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

type Value<'a> = (f64, crate::fit::Prediction<'a>);

/// Fits coefficients to all values of the models' batches. Each family has the same weight.
fn fit_group<'a>(
    prior: &[f64],
    models: &[&'a MeasuredModel],
    values: &dyn Fn(&'a ProfileRow, &'a BatchOperators) -> Vec<Value<'a>>,
) -> Vec<f64> {
    let mut observations = Vec::new();
    let families: BTreeSet<&str> = models.iter().map(|model| model.family).collect();
    for family in families {
        let members = models.iter().filter(|model| model.family == family);
        let found: Vec<Value<'a>> = members
            .flat_map(|model| &model.batches)
            .flat_map(|(row, batch)| values(row, batch))
            .collect();
        let weight = 1.0 / found.len().max(1) as f64;
        observations.extend(found.into_iter().map(|(measured, predict)| Observation {
            measured,
            weight,
            predict,
        }));
    }
    fit(prior, &observations, RIDGE)
}

/// Fits the coefficients of time.
pub fn fit_latency(prior: &Latency, models: &[&MeasuredModel]) -> Latency {
    let values = fit_group(prior.values(), models, &|row, batch| {
        let predict = move |values: &[f64]| batch.seconds(&Latency::from_values(values));
        vec![(row.latency.as_secs_f64(), Box::new(predict))]
    });
    Latency::from_values(&values)
}

/// Fits the coefficients of utilisation, for these of time.
pub fn fit_utilization(latency: &Latency, models: &[&MeasuredModel]) -> Utilization {
    let values = fit_group(Utilization::default().values(), models, &|row, batch| {
        let mut found: Vec<Value<'_>> = Vec::new();
        if let Some(used) = row.sm_utilization {
            found.push((
                used.get(),
                Box::new(|values| {
                    batch
                        .utilization(latency, &Utilization::from_values(values))
                        .0
                }),
            ));
        }
        if let Some(occupied) = row.mean_occupancy {
            found.push((
                occupied.get(),
                Box::new(|values| {
                    batch
                        .utilization(latency, &Utilization::from_values(values))
                        .1
                }),
            ));
        }
        if let Some(highest) = row.achieved_occupancy {
            found.push((
                highest.get(),
                Box::new(|values| 100.0 * Utilization::from_values(values).highest_occupancy()),
            ));
        }
        found
    });
    Utilization::from_values(&values)
}

/// Fits the coefficients of memory.
pub fn fit_memory(models: &[&MeasuredModel]) -> Memory {
    let values = fit_group(Memory::default().values(), models, &|row, batch| {
        let bytes = row.memory.map(|memory| memory.as_u64() as f64);
        let predict = move |values: &[f64]| batch.memory_bytes(&Memory::from_values(values));
        let value = bytes.map(|bytes| -> Value<'_> { (bytes, Box::new(predict)) });
        value.into_iter().collect()
    });
    Memory::from_values(&values)
}

/// Fits all coefficients.
pub fn fit_all(prior: &Latency, models: &[&MeasuredModel]) -> Coefficients {
    let latency = fit_latency(prior, models);
    Coefficients {
        utilization: fit_utilization(&latency, models),
        memory: fit_memory(models),
        latency,
    }
}

/// The predictions of models from models of other families.
#[derive(Default)]
pub struct LeftOut {
    /// The coefficients that were fitted without a family.
    pub coefficients: BTreeMap<&'static str, Coefficients>,
    /// The times of batches, in milliseconds.
    pub latency_ms: Vec<Prediction>,
    /// The memory, in MiB.
    pub memory_mib: Vec<Prediction>,
    /// The mean utilisation of multiprocessors, in percent.
    pub sm_utilization_pct: Vec<Prediction>,
    /// The mean occupancy, in percent.
    pub mean_occupancy_pct: Vec<Prediction>,
}

/// Predicts each model with coefficients that were fitted to the models of all other families.
pub fn leave_one_family_out(prior: &Latency, models: &[MeasuredModel]) -> LeftOut {
    let families: BTreeSet<&'static str> = models.iter().map(|model| model.family).collect();
    let mut left_out = LeftOut::default();
    for family in families {
        let others: Vec<&MeasuredModel> = models
            .iter()
            .filter(|model| model.family != family)
            .collect();
        let found = fit_all(prior, &others);
        for model in models.iter().filter(|model| model.family == family) {
            for (row, batch) in &model.batches {
                let prediction = |measured, predicted| Prediction {
                    model: model.name.clone(),
                    family,
                    rows: row.batch_size,
                    measured,
                    predicted,
                };
                let measured = row.latency.as_secs_f64();
                let latency = prediction(1e3 * measured, 1e3 * batch.seconds(&found.latency));
                left_out.latency_ms.push(latency);
                let memory = row.memory.map(|memory| {
                    let mib = f64::from(1 << 20);
                    prediction(memory.as_mib_f64(), batch.memory_bytes(&found.memory) / mib)
                });
                left_out.memory_mib.extend(memory);
                let (used, occupied) = batch.utilization(&found.latency, &found.utilization);
                let percent = |measured: Option<Percent>, predicted| {
                    measured.map(|measured| prediction(measured.get(), predicted))
                };
                left_out
                    .sm_utilization_pct
                    .extend(percent(row.sm_utilization, used));
                left_out
                    .mean_occupancy_pct
                    .extend(percent(row.mean_occupancy, occupied));
            }
        }
        left_out.coefficients.insert(family, found);
    }
    left_out
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, fs, path::PathBuf};

    use super::*;
    use crate::ExpectedError;

    fn file(name: &str) -> String {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn thesis() -> Vec<MeasuredModel> {
        let kind = ExpectedError::MEASURED_ON.parse().unwrap();
        measured_models(
            &graphs(&file("profiles/operators/thesis.jsonl")).unwrap(),
            &ProfileTable::from_csv(&file("profiles/v100-thesis.csv")).unwrap(),
            &kind,
            &DeviceSheet::of(&kind).unwrap(),
        )
    }

    fn quantile(predictions: &[Prediction], part: f64) -> f64 {
        let mut errors: Vec<f64> = predictions.iter().map(|p| p.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors[((errors.len() - 1) as f64 * part).round() as usize]
    }

    /// `PACKHORSE_BLESS=1 cargo test -p packhorse-estimator coefficients` rewrites the file.
    #[test]
    fn the_coefficients_are_those_fitted_to_the_thesis() {
        let models = thesis();
        let fitted = fit_all(&Latency::default(), &models.iter().collect::<Vec<_>>());
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/libtorch.csv");
        #[expect(
            clippy::disallowed_methods,
            reason = "the developer asks for a new file"
        )]
        if std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1") {
            fs::write(&path, fitted.to_csv()).unwrap();
            return;
        }
        let committed = Coefficients::libtorch();
        let values = |c: &Coefficients| {
            [
                c.latency.values(),
                c.utilization.values(),
                c.memory.values(),
            ]
            .concat()
        };
        for (fitted, committed) in values(&fitted).iter().zip(values(committed)) {
            assert!(
                (fitted / committed - 1.0).abs() < 0.01,
                "{fitted} is not {committed}: run this test again with PACKHORSE_BLESS=1"
            );
        }
    }

    #[test]
    fn models_of_families_never_seen_are_estimated_within_10_percent_in_the_median() {
        let models = thesis();
        assert_eq!(models.len(), 13);
        let left_out = leave_one_family_out(&Latency::default(), &models);
        assert_eq!(left_out.latency_ms.len(), 71);
        let (median, p90) = (
            quantile(&left_out.latency_ms, 0.5),
            quantile(&left_out.latency_ms, 0.9),
        );
        assert!(median <= 0.10 && p90 <= 0.35, "{median:.3}, {p90:.3}");
        let memory = quantile(&left_out.memory_mib, 0.5);
        assert!(memory <= 0.10, "{memory:.3}");
    }

    #[test]
    fn the_expected_errors_are_those_on_families_that_were_left_out() {
        let left_out = leave_one_family_out(&Latency::default(), &thesis());
        for (expected, predictions) in [
            (ExpectedError::LATENCY, &left_out.latency_ms),
            (ExpectedError::MEMORY, &left_out.memory_mib),
            (ExpectedError::SM_UTILIZATION, &left_out.sm_utilization_pct),
        ] {
            for (percent, part) in [(expected.median_pct, 0.5), (expected.p90_pct, 0.9)] {
                let found = 100.0 * quantile(predictions, part);
                assert_eq!(format!("{percent:.1}"), format!("{found:.1}"));
            }
        }
    }

    fn clockwork() -> Vec<MeasuredModel> {
        measured_models(
            &graphs(&file("profiles/operators/clockwork.jsonl")).unwrap(),
            &ProfileTable::from_csv(&file("profiles/v100-clockwork.csv")).unwrap(),
            &"V100".parse().unwrap(),
            &DeviceSheet::of(&"V100-SXM2-16GB".parse().unwrap()).unwrap(),
        )
    }

    fn table(title: &str, predictions: &[Prediction]) -> String {
        let mut text = format!(
            "\n## {title}\n\nMedian error {:.1} %, 90th percentile {:.1} % of {} batches.\n\n\
             | family | batches | median error | largest error |\n|---|--:|--:|--:|\n",
            100.0 * quantile(predictions, 0.5),
            100.0 * quantile(predictions, 0.9),
            predictions.len()
        );
        let families: BTreeSet<&str> = predictions.iter().map(|p| p.family).collect();
        for family in families {
            let members = predictions.iter().filter(|p| p.family == family);
            let members: Vec<Prediction> = members.cloned().collect();
            writeln!(
                text,
                "| {family} | {} | {:.1} % | {:.1} % |",
                members.len(),
                100.0 * quantile(&members, 0.5),
                100.0 * quantile(&members, 1.0)
            )
            .unwrap();
        }
        text
    }

    /// `PACKHORSE_BLESS=1 cargo test -p packhorse-estimator page` rewrites the file.
    #[test]
    fn the_page_has_the_errors_on_families_that_were_left_out() {
        let thesis = leave_one_family_out(&Latency::default(), &thesis());
        let clockwork = leave_one_family_out(&Latency::of_tvm(), &clockwork());
        let mut page = file("crates/estimator/src/page.md");
        page += &table("Latency, thesis", &thesis.latency_ms);
        page += &table("Latency, Clockwork's zoo", &clockwork.latency_ms);
        page += &table("Memory, thesis", &thesis.memory_mib);
        page += &table(
            "Utilisation of the multiprocessors, thesis",
            &thesis.sm_utilization_pct,
        );
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments/estimator.md");
        #[expect(
            clippy::disallowed_methods,
            reason = "the developer asks for a new file"
        )]
        if std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1") {
            fs::write(&path, page).unwrap();
            return;
        }
        assert_eq!(
            file("docs/experiments/estimator.md"),
            page,
            "the page is stale: run this test again with PACKHORSE_BLESS=1"
        );
    }
}
