//! The authorities that an HTTP client trusts.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::{error::TlsFileError, pem::PemFile, provider};

/// The authorities whose certificates a client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorities {
    /// Those that the machine trusts.
    #[default]
    Machine,
    /// Those in a file, and no others.
    File(PathBuf),
}

/// The reason why a client does not know whom to trust. The name of the flag for the file is the program's to add.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The file with the authorities cannot be used.
    #[error(transparent)]
    File(#[from] TlsFileError),
    /// The machine trusts nobody.
    #[error(
        "this machine has no certificates of authorities: install ca-certificates, or name the file of the server's authority"
    )]
    NoneHere,
}

/// The reason why a server's certificate is refused.
#[derive(Clone, Debug)]
pub struct RefusedCertificate(Box<Refusal>);

#[derive(Clone, Debug)]
struct Refusal {
    reason: CertificateError,
    authorities: Authorities,
}

impl Authorities {
    /// Returns those of a flag that may name a file.
    pub fn from_flag(file: Option<&Path>) -> Self {
        file.map_or(Self::Machine, |file| Self::File(file.to_owned()))
    }

    /// Returns the configuration of a client of URLs with this scheme. One of `http` trusts nobody, because it uses no TLS; nothing is
    /// read for it.
    ///
    /// # Errors
    /// If the file cannot be used, or the machine has no authorities.
    pub fn client_config(&self, scheme: &str) -> Result<ClientConfig, AuthoritiesError> {
        let roots = match self {
            _ if scheme == "http" => RootCertStore::empty(),
            Self::File(path) => PemFile::read(path)?.roots()?,
            Self::Machine => {
                let mut roots = RootCertStore::empty();
                // Some of the machine's files may be unreadable or malformed; the others count.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(AuthoritiesError::NoneHere);
                }
                roots
            }
        };
        Ok(ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for all versions")
            .with_root_certificates(roots)
            .with_no_client_auth())
    }

    /// Returns the reason why the server's certificate was refused, if that is what an error is about.
    pub fn refusal(&self, error: &(dyn Error + 'static)) -> Option<RefusedCertificate> {
        let Some(rustls::Error::InvalidCertificate(reason)) = tls_error(error) else {
            return None;
        };
        Some(RefusedCertificate(Box::new(Refusal {
            reason: reason.clone(),
            authorities: self.clone(),
        })))
    }
}

/// Returns the error of rustls that caused an error of a library above it.
pub fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an io::Error is that of the error within it.
        let within = error.downcast_ref::<io::Error>().and_then(|e| e.get_ref());
        cause = match within {
            Some(within) => Some(within),
            None => error.source(),
        };
    }
    None
}

impl Error for RefusedCertificate {}

impl fmt::Display for RefusedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.reason, &self.0.authorities) {
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, authorities) => {
                f.write_str("its certificate is not signed by an authority ")?;
                match authorities {
                    Authorities::Machine => f.write_str(
                        "that this machine trusts; name the file of its authority with --ca-file",
                    ),
                    Authorities::File(path) => {
                        write!(f, "in {}", path.display())
                    }
                }
            }
            (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => {
                f.write_str("its certificate has expired")
            }
            (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => {
                f.write_str("its certificate is not valid yet; is this machine's clock right?")
            }
            (CertificateError::NotValidForName, _) => {
                f.write_str("its certificate is for other names or addresses")
            }
            (CertificateError::NotValidForNameContext { presented, .. }, _) => {
                write!(f, "its certificate is for {} only", presented.join(", "))
            }
            (reason, _) => write!(f, "its certificate is refused: {reason}"),
        }
    }
}
