//! Predictions of the plan beside observations, in Prometheus' text format, as the control plane last computed it.

use std::{
    fmt::Error,
    sync::{Arc, PoisonError, RwLock},
};

use packhorse_cluster::ModelId;
use packhorse_control::PredictedGoodput;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::{encode_samples, encode_value};

/// The goodput of the last sample, predicted and observed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictions {
    /// Each model that was sampled under a plan, with the rate that the next plan is made for.
    pub(crate) models: Vec<(ModelId, PredictedGoodput, f64)>,
    /// The observed goodput of the last hour over the predicted one, minus 1, over all models.
    pub(crate) total_bias: Option<f64>,
}

/// The last predictions.
#[derive(Clone, Debug, Default)]
pub(super) struct PredictionMetrics(Arc<RwLock<Predictions>>);

type ReadGauge = fn(&(ModelId, PredictedGoodput, f64)) -> Option<f64>;

const METRICS: [(&str, &str, ReadGauge); 4] = [
    (
        "packhorse_predicted_goodput_rps",
        "Requests per second that the plan expected within the SLO, of those that arrived.",
        |(_, goodput, _)| (goodput.offered_rps > 0.0).then_some(goodput.predicted_rps),
    ),
    (
        "packhorse_observed_goodput_rps",
        "Requests per second that were answered within the SLO.",
        |(_, goodput, _)| (goodput.offered_rps > 0.0).then_some(goodput.observed_rps),
    ),
    (
        "packhorse_goodput_bias_ratio",
        "Observed goodput of the last hour over the predicted one, minus 1.",
        |(_, goodput, _)| goodput.bias,
    ),
    (
        "packhorse_planned_rate_rps",
        "Requests per second that the next plan is made for.",
        |(_, _, planned)| Some(*planned),
    ),
];

impl PredictionMetrics {
    pub(super) fn set(&self, predictions: Predictions) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = predictions;
    }
}

impl Collector for PredictionMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let predictions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (name, help, read) in METRICS {
            let values = predictions.models.iter().filter_map(|model| {
                let labels = [
                    ("model", model.0.name.to_string()),
                    ("version", model.0.version.to_string()),
                ];
                Some((labels, read(model)?))
            });
            encode_samples(&mut encoder, name, help, MetricType::Gauge, values)?;
        }
        if let Some(bias) = predictions.total_bias {
            encode_value(
                &mut encoder,
                "packhorse_total_goodput_bias_ratio",
                "Observed goodput of the last hour over the predicted one, minus 1, over all models.",
                MetricType::Gauge,
                &bias,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;

    #[test]
    fn what_cannot_be_compared_yet_has_no_sample() {
        let metrics = PredictionMetrics::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        let goodput = |bias| PredictedGoodput {
            offered_rps: 10.0,
            predicted_rps: 9.5,
            observed_rps: 9.0,
            bias,
        };
        let without_requests = PredictedGoodput {
            offered_rps: 0.0,
            ..goodput(None)
        };
        metrics.set(Predictions {
            models: vec![
                ("cat".parse().unwrap(), goodput(Some(-0.25)), 12.0),
                ("dog".parse().unwrap(), goodput(None), 12.0),
                ("idle".parse().unwrap(), without_requests, 1.0),
            ],
            total_bias: Some(-0.125),
        });
        let mut written = String::new();
        text::encode(&mut written, &registry).unwrap();
        let samples: Vec<&str> = written
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let expected = [
            "packhorse_predicted_goodput_rps{model=\"cat\",version=\"1\"} 9.5",
            "packhorse_predicted_goodput_rps{model=\"dog\",version=\"1\"} 9.5",
            "packhorse_observed_goodput_rps{model=\"cat\",version=\"1\"} 9.0",
            "packhorse_observed_goodput_rps{model=\"dog\",version=\"1\"} 9.0",
            "packhorse_goodput_bias_ratio{model=\"cat\",version=\"1\"} -0.25",
            "packhorse_planned_rate_rps{model=\"cat\",version=\"1\"} 12.0",
            "packhorse_planned_rate_rps{model=\"dog\",version=\"1\"} 12.0",
            "packhorse_planned_rate_rps{model=\"idle\",version=\"1\"} 1.0",
            "packhorse_total_goodput_bias_ratio -0.125",
        ];
        assert_eq!(samples, expected);
    }
}
