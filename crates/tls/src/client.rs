//! TLS of the gateway's side of worker links.

use std::{path::PathBuf, sync::Arc};

use rustls::ClientConfig;

use crate::{
    authorities::Authorities,
    error::TlsFileError,
    pem::{Identity, PemFile, identity_error},
    provider,
    reload::Reloaded,
};

/// The files of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities of the servers' certificates.
    pub authorities: PathBuf,
    /// The client's certificate and key, for servers that ask for them.
    pub identity: Option<Identity>,
}

/// The configuration of a client that trusts its own authorities only.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The configuration for rustls.
    pub config: Arc<ClientConfig>,
    /// The authorities of the servers' certificates.
    pub authorities: Authorities,
}

impl ClientTls {
    /// Reads the files. The client speaks the protocols of `alpn` and no others.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn open(
        files: ClientFiles,
        alpn: &'static [&'static [u8]],
    ) -> Result<Reloaded<Self>, TlsFileError> {
        let mut paths = vec![files.authorities];
        paths.extend(
            files
                .identity
                .into_iter()
                .flat_map(|i| [i.certificate, i.key]),
        );
        Reloaded::new(paths, |files| Self::make(files, alpn))
    }

    fn make(files: &[PemFile], alpn: &[&[u8]]) -> Result<Self, TlsFileError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for all versions")
            .with_root_certificates(files[0].roots()?);
        let mut config = match &files[1..] {
            [certificate, key] => builder
                .with_client_auth_cert(certificate.certificates()?, key.key()?)
                .map_err(|e| identity_error(certificate, key, &e))?,
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self {
            config: Arc::new(config),
            authorities: Authorities::File(files[0].path.clone()),
        })
    }
}
