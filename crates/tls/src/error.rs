//! The errors of PEM files.

use std::path::PathBuf;

/// The reason why a PEM file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TlsFileError {
    /// The file.
    pub path: PathBuf,
    /// Its problem.
    pub problem: TlsFileProblem,
}

/// The problem of a PEM file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFileProblem {
    /// The operating system does not let it be read.
    #[error("the file cannot be read: {0}")]
    Unreadable(String),
    /// The file is larger than any certificate or key.
    #[error("the file is over the limit of {0} bytes")]
    TooLarge(u64),
    /// The file has no PEM section of a certificate.
    #[error("the file contains no certificate in PEM form")]
    NoCertificate,
    /// A certificate is malformed.
    #[error("a certificate in the file cannot be parsed: {0}")]
    Certificate(String),
    /// The file has no PEM section of a private key.
    #[error("the file contains no private key in PEM form")]
    NoKey,
    /// The key is malformed, or of a kind that is not supported.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// The key belongs to another certificate.
    #[error("the private key does not belong to the certificate in {}", .0.display())]
    OtherKey(PathBuf),
}
