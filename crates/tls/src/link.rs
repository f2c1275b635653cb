//! The flags of TLS between the gateway and its workers.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    client::{ClientFiles, ClientTls},
    error::TlsFileError,
    pem::Identity,
    reload::Reloaded,
    server::{ServerFiles, ServerTls},
};

/// The use of TLS between the gateway and workers on other machines. Both sides have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkTlsMode {
    /// None: batches are sent in clear text
    #[default]
    Off,
    /// Workers prove who they are by a certificate
    Server,
    /// The gateway, too, proves who it is by a certificate
    Mutual,
}

/// The flags of TLS between the gateway and its workers, the same for gateway and agent.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LinkTlsOptions {
    /// TLS between the gateway and workers on other machines: off, server (workers have certificates) or mutual (the gateway has one,
    /// too). Gateway and agents need the same; on one machine there is never TLS
    #[arg(
        long,
        env = "PACKHORSE_LINK_TLS",
        value_name = "WHO",
        default_value = "off",
        hide_possible_values = true
    )]
    pub link_tls: LinkTlsMode,

    /// File with the certificate of this side of worker links, in PEM form; a worker's names the IP address that it listens on
    #[arg(long, env = "PACKHORSE_LINK_CERT", value_name = "FILE")]
    pub link_cert: Option<PathBuf>,

    /// File with the private key of --link-cert
    #[arg(long, env = "PACKHORSE_LINK_KEY", value_name = "FILE")]
    pub link_key: Option<PathBuf>,

    /// File with the certificates of the authorities that sign the other side's certificate
    #[arg(long, env = "PACKHORSE_LINK_CA", value_name = "FILE")]
    pub link_ca: Option<PathBuf>,
}

/// TLS between the gateway and its workers, with the files of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTls<F> {
    /// True if the gateway has a certificate, too.
    pub mutual: bool,
    /// The files of this side.
    pub files: F,
}

/// The reason why the flags of TLS between gateway and workers are refused.
#[derive(Debug, thiserror::Error)]
pub enum LinkTlsError {
    /// A file is missing.
    #[error("--link-tls {mode} needs --{flag}")]
    Missing {
        /// The value of the flag.
        mode: &'static str,
        /// The missing flag.
        flag: &'static str,
    },
    /// A path cannot be made absolute, because the working folder is gone.
    #[error("--{flag}: {}: {source}", path.display())]
    Path {
        /// The flag.
        flag: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

impl LinkTlsOptions {
    /// Returns what workers need as servers; `None` without TLS.
    ///
    /// # Errors
    /// If a flag is missing.
    pub fn of_workers(&self) -> Result<Option<LinkTls<ServerFiles>>, LinkTlsError> {
        let files = |mutual: bool| {
            let client_authorities = mutual.then(|| self.authorities()).transpose()?;
            Ok(ServerFiles {
                identity: self.identity()?,
                client_authorities,
            })
        };
        self.with_mode(files)
    }

    /// Returns what the gateway needs as a client; `None` without TLS.
    ///
    /// # Errors
    /// If a flag is missing.
    pub fn of_gateway(&self) -> Result<Option<LinkTls<ClientFiles>>, LinkTlsError> {
        let files = |mutual: bool| {
            let identity = mutual.then(|| self.identity()).transpose()?;
            Ok(ClientFiles {
                authorities: self.authorities()?,
                identity,
            })
        };
        self.with_mode(files)
    }

    fn with_mode<F>(
        &self,
        files: impl Fn(bool) -> Result<F, LinkTlsError>,
    ) -> Result<Option<LinkTls<F>>, LinkTlsError> {
        let mutual = match self.link_tls {
            LinkTlsMode::Off => return Ok(None),
            LinkTlsMode::Server => false,
            LinkTlsMode::Mutual => true,
        };
        let files = files(mutual)?;
        Ok(Some(LinkTls { mutual, files }))
    }

    fn identity(&self) -> Result<Identity, LinkTlsError> {
        Ok(Identity {
            certificate: self.file("link-cert", self.link_cert.as_deref())?,
            key: self.file("link-key", self.link_key.as_deref())?,
        })
    }

    fn authorities(&self) -> Result<PathBuf, LinkTlsError> {
        self.file("link-ca", self.link_ca.as_deref())
    }

    /// Returns the path for a process with another working folder. Symbolic links stay: others may take their place.
    fn file(&self, flag: &'static str, path: Option<&Path>) -> Result<PathBuf, LinkTlsError> {
        let mode = if self.link_tls == LinkTlsMode::Mutual {
            "mutual"
        } else {
            "server"
        };
        let path = path.ok_or(LinkTlsError::Missing { mode, flag })?;
        std::path::absolute(path).map_err(|source| LinkTlsError::Path {
            flag,
            path: path.to_owned(),
            source,
        })
    }
}

/// Returns the protocol that both sides name in their handshake. It tells whether the gateway has a certificate, so that sides with
/// different flags do not come together.
fn protocol(mutual: bool) -> &'static [&'static [u8]] {
    if mutual {
        &[b"packhorse-link-mutual"]
    } else {
        &[b"packhorse-link-server"]
    }
}

impl LinkTls<ServerFiles> {
    /// Reads the files of a worker.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn open_server(&self) -> Result<Reloaded<ServerTls>, TlsFileError> {
        ServerTls::open(self.files.clone(), protocol(self.mutual))
    }
}

impl LinkTls<ClientFiles> {
    /// Reads the files of the gateway.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn open_client(&self) -> Result<Reloaded<ClientTls>, TlsFileError> {
        ClientTls::open(self.files.clone(), protocol(self.mutual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(link_tls: LinkTlsMode, files: [Option<&str>; 3]) -> LinkTlsOptions {
        let [link_cert, link_key, link_ca] = files.map(|file| file.map(PathBuf::from));
        LinkTlsOptions {
            link_tls,
            link_cert,
            link_key,
            link_ca,
        }
    }

    #[test]
    fn each_side_asks_for_the_files_that_it_needs() {
        use LinkTlsMode::{Mutual, Off, Server};

        let (own, ca) = ([Some("/c"), Some("/k"), None], [None, None, Some("/a")]);
        let all = [Some("/c"), Some("/k"), Some("/a")];
        assert!(options(Off, all).of_workers().unwrap().is_none());
        assert!(options(Off, all).of_gateway().unwrap().is_none());
        assert!(options(Server, own).of_workers().unwrap().is_some());
        assert!(options(Server, ca).of_gateway().unwrap().is_some());
        let missing = |error: LinkTlsError| error.to_string();
        assert_eq!(
            missing(options(Server, own).of_gateway().unwrap_err()),
            "--link-tls server needs --link-ca"
        );
        assert_eq!(
            missing(options(Mutual, own).of_workers().unwrap_err()),
            "--link-tls mutual needs --link-ca"
        );
        assert_eq!(
            missing(options(Mutual, ca).of_gateway().unwrap_err()),
            "--link-tls mutual needs --link-cert"
        );
        let workers = options(Mutual, all).of_workers().unwrap().unwrap();
        let expected = Some(PathBuf::from("/a"));
        assert_eq!(workers.files.client_authorities, expected);
    }
}
