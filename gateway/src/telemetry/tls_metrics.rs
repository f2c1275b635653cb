//! The metrics of the listeners' certificates.

use std::{
    fmt::Error,
    sync::{Arc, OnceLock},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::samples::encode_samples;
use crate::serve::Certificate;

/// The listeners' certificates. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsMetrics {
    certificates: Arc<OnceLock<Vec<Certificate>>>,
}

impl TlsMetrics {
    /// Sets the certificates, which are there once.
    pub(super) fn set(&self, certificates: Vec<Certificate>) {
        let _ = self.certificates.set(certificates);
    }

    fn encode_gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Certificate) -> i64,
    ) -> Result<(), Error> {
        let certificates = self.certificates.get().into_iter().flatten();
        let values = certificates.map(|of| ([("listener", of.listener)], value(of)));
        encode_samples(encoder, name, help, MetricType::Gauge, values)
    }
}

impl Collector for TlsMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.certificates.get().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        self.encode_gauge(
            &mut encoder,
            "packhorse_tls_certificate_expiry_seconds",
            "Unix time at which the listener's certificate ends.",
            |certificate| certificate.tls.get().expires_s,
        )?;
        self.encode_gauge(
            &mut encoder,
            "packhorse_tls_certificate_last_reload_successful",
            "1 if the listener's certificate is the one in its files, 0 if these cannot be used and the former one stays.",
            |certificate| i64::from(certificate.tls.broken().is_none()),
        )
    }
}
