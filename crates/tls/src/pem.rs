//! PEM files with certificates and keys.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};

use crate::error::{TlsFileError, TlsFileProblem};

/// The largest PEM file, in bytes. The bundle of all public authorities has 200 kB.
const FILE_LIMIT: u64 = 1 << 20;

/// The files of a certificate, followed by those that lead to its authority, and of its private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// A file with its content.
pub(crate) struct PemFile {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
}

impl PemFile {
    pub(crate) fn read(path: &Path) -> Result<Self, TlsFileError> {
        let unreadable = |e: std::io::Error| error(path, TlsFileProblem::Unreadable(e.to_string()));
        let mut content = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(FILE_LIMIT + 1)
            .read_to_end(&mut content)
            .map_err(unreadable)?;
        if content.len() as u64 > FILE_LIMIT {
            return Err(error(path, TlsFileProblem::TooLarge(FILE_LIMIT)));
        }
        Ok(Self {
            path: path.to_owned(),
            content,
        })
    }

    pub(crate) fn error(&self, problem: TlsFileProblem) -> TlsFileError {
        error(&self.path, problem)
    }

    /// Returns all certificates of the file, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
        let certificates: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&self.content).collect();
        let malformed = |e: rustls::pki_types::pem::Error| {
            self.error(TlsFileProblem::Certificate(e.to_string()))
        };
        let certificates = certificates.map_err(malformed)?;
        if certificates.is_empty() {
            return Err(self.error(TlsFileProblem::NoCertificate));
        }
        Ok(certificates)
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsFileError> {
        PrivateKeyDer::from_pem_slice(&self.content).map_err(|e| match e {
            rustls::pki_types::pem::Error::NoItemsFound => self.error(TlsFileProblem::NoKey),
            e => self.error(TlsFileProblem::Key(e.to_string())),
        })
    }

    /// Returns the certificates of the file as those of authorities.
    pub(crate) fn roots(&self) -> Result<RootCertStore, TlsFileError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = roots.add(certificate);
            added.map_err(|e| self.error(TlsFileProblem::Certificate(e.to_string())))?;
        }
        Ok(roots)
    }
}

/// Returns the error of a key and a certificate that rustls does not use together.
pub(crate) fn identity_error(
    certificate: &PemFile,
    key: &PemFile,
    problem: &rustls::Error,
) -> TlsFileError {
    match problem {
        rustls::Error::InconsistentKeys(_) => {
            key.error(TlsFileProblem::OtherKey(certificate.path.clone()))
        }
        rustls::Error::InvalidCertificate(e) => {
            certificate.error(TlsFileProblem::Certificate(e.to_string()))
        }
        problem => key.error(TlsFileProblem::Key(problem.to_string())),
    }
}

fn error(path: &Path, problem: TlsFileProblem) -> TlsFileError {
    TlsFileError {
        path: path.to_owned(),
        problem,
    }
}
