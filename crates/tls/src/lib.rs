//! TLS of listeners, HTTP clients and worker links: PEM files as configurations of rustls.
//!
//! [`ServerTls`] and [`ClientTls`] are made of files and kept as [`Reloaded`] values, which are made again when the files change.
//! [`Authorities`] says whom an HTTP client trusts. All of them use TLS 1.2 and 1.3 with the cryptography of ring.

mod authorities;
mod client;
mod error;
mod link;
mod pem;
mod reload;
mod server;

pub use authorities::{Authorities, AuthoritiesError, RefusedCertificate, tls_error};
pub use client::{ClientFiles, ClientTls};
pub use error::{TlsFileError, TlsFileProblem};
pub use link::{LinkTls, LinkTlsError, LinkTlsMode, LinkTlsOptions};
pub use pem::Identity;
pub use reload::{Refresh, Reloaded};
pub use server::{ServerFiles, ServerTls};

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// Returns true if the first byte of a connection can begin a TLS handshake.
pub fn begins_tls(first: u8) -> bool {
    /// The type of a record that carries handshake messages (RFC 8446, section 5.1).
    const HANDSHAKE: u8 = 22;
    first == HANDSHAKE
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
