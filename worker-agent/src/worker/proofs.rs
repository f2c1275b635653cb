//! The proofs of a worker and of gateways to each other: a shared secret, and certificates.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use packhorse_tls::{LinkTls, Reloaded, ServerTls};
use packhorse_wire::LinkSecret;
use packhorse_worker_agent::handoff::LinkSettings;

use crate::executor::StartError;

/// The most bytes of a secret that is passed.
const LONGEST_SECRET: u64 = 1 << 16;

/// The proofs of a worker to gateways, and of them to it.
#[derive(Clone)]
pub(crate) struct Proofs {
    /// The secret that they share.
    pub(crate) secret: LinkSecret,
    /// TLS for gateways on other machines.
    pub(crate) tls: Option<Arc<Reloaded<ServerTls>>>,
}

impl Proofs {
    /// Reads the secret and the certificates.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub(crate) fn read(links: &LinkSettings) -> Result<Self, StartError> {
        let secret = read_secret(links).map_err(StartError::transient)?;
        let tls = links.tls.as_ref().map(LinkTls::open_server).transpose();
        let tls = tls.map_err(|e| StartError::transient(format!("--link-tls: {e}")))?;
        let tls = tls.map(Arc::new);
        Ok(Self { secret, tls })
    }
}

/// Returns the folders of the files of TLS, which are read again when they change, and of what they are links to.
pub(crate) fn folders_of_certificates(links: &LinkSettings) -> impl Iterator<Item = PathBuf> {
    let tls = links.tls.iter();
    let files = tls.flat_map(|tls| {
        let identity = &tls.files.identity;
        let authorities = tls.files.client_authorities.as_ref();
        [
            Some(&identity.certificate),
            Some(&identity.key),
            authorities,
        ]
    });
    files.flatten().flat_map(|file| {
        let target = fs::canonicalize(file).ok();
        let folder = |path: PathBuf| path.parent().map(Path::to_owned);
        [folder(file.clone()), target.and_then(folder)]
            .into_iter()
            .flatten()
    })
}

fn read_secret(links: &LinkSettings) -> Result<LinkSecret, String> {
    let content = match &links.secret_file {
        Some(file) => fs::read(file).map_err(|e| format!("link secret file: {e}"))?,
        None if links.own_user => {
            let mut passed = Vec::new();
            io::stdin()
                .take(LONGEST_SECRET)
                .read_to_end(&mut passed)
                .map_err(|e| format!("link secret: {e}"))?;
            if passed.is_empty() {
                return Ok(LinkSecret::none());
            }
            passed
        }
        None => return Ok(LinkSecret::none()),
    };
    let secret = LinkSecret::from_file_content(&content);
    if secret == LinkSecret::none() {
        return Err("link secret file: the file is empty".to_owned());
    }
    Ok(secret)
}
