//! The samples of the metrics that are read when Prometheus asks. A metric is written under the very name that it is given, whatever
//! its type: the encoder would append `_total` to a counter's samples, but not in the description, so that `promtool` finds no help
//! for them, and Triton's counters have no such ending. A counter is therefore written like a gauge, under its own type.

use std::fmt::Error;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet},
    metrics::MetricType,
};

/// Writes a counter or a gauge with a sample for each set of labels.
pub(super) fn encode_samples<L: EncodeLabelSet, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    samples: impl IntoIterator<Item = (L, V)>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// Writes a counter or a gauge with one sample without labels.
pub(super) fn encode_value(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    value: &impl EncodeGaugeValue,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    metric.encode_gauge(value)
}
