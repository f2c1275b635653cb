//! TLS of a server.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::CertificateDer,
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{TlsFileError, TlsFileProblem},
    pem::{Identity, PemFile, identity_error},
    provider,
    reload::Reloaded,
};

/// The files of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFiles {
    /// The server's certificate and key.
    pub identity: Identity,
    /// The authorities of the certificates that clients must have; `None` if they need none.
    pub client_authorities: Option<PathBuf>,
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The configuration for rustls.
    pub config: Arc<ServerConfig>,
    /// The end of the certificate's validity, as Unix time in seconds.
    pub expires_s: i64,
}

impl ServerTls {
    /// Reads the files. The server speaks the protocols of `alpn` and no others.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn open(
        files: ServerFiles,
        alpn: &'static [&'static [u8]],
    ) -> Result<Reloaded<Self>, TlsFileError> {
        let Identity { certificate, key } = files.identity;
        let mut paths = vec![certificate, key];
        paths.extend(files.client_authorities);
        Reloaded::new(paths, |files| Self::make(files, alpn))
    }

    fn make(files: &[PemFile], alpn: &[&[u8]]) -> Result<Self, TlsFileError> {
        let (certificate, key) = (&files[0], &files[1]);
        let chain = certificate.certificates()?;
        let expires_s = expiry(&chain[0])
            .map_err(|e| certificate.error(TlsFileProblem::Certificate(e.to_string())))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for all versions");
        let builder = match files.get(2) {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots: RootCertStore = authorities.roots()?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build();
                let verifier = verifier.map_err(|e: VerifierBuilderError| {
                    authorities.error(TlsFileProblem::Certificate(e.to_string()))
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key.key()?)
            .map_err(|e| identity_error(certificate, key, &e))?;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self {
            config: Arc::new(config),
            expires_s,
        })
    }
}

/// Returns the end of a certificate's validity, as Unix time in seconds.
fn expiry(
    certificate: &CertificateDer<'_>,
) -> Result<i64, x509_parser::nom::Err<x509_parser::error::X509Error>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate)?;
    Ok(certificate.validity().not_after.timestamp())
}
