//! The reasons why a connection to a worker ends, or cannot be made.

use std::{io, net::SocketAddr, time::Duration};

use packhorse_tls::{Authorities, RefusedCertificate, tls_error};
use packhorse_wire::{DecodeError, HandshakeError};

/// The reason why a connection ended, or could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the worker closed the connection")]
    Closed,
    #[error("the worker closed the connection: {0}")]
    ClosedWithReason(String),
    #[error("protocol error: {0}")]
    Decode(#[from] DecodeError),
    #[error("the worker cannot be trusted: {0}")]
    Untrusted(RefusedCertificate),
    #[error("the worker does not speak TLS: its agent needs the --link-tls of the gateway")]
    NotTls,
    #[error(
        "the worker and the gateway disagree on who has a certificate: its agent needs the --link-tls of the gateway"
    )]
    OtherTls,
    #[error("the worker refuses the gateway's certificate (--link-cert): {0}")]
    Refused(rustls::Error),
    #[error("handshake failed: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("handshake timed out after {0:?}")]
    HandshakeTimeout(Duration),
    #[error(
        "the worker at {0} is on another machine, and requests are not sent there without --link-secret-file"
    )]
    NoSecret(SocketAddr),
    #[error("connecting timed out after {0:?}")]
    ConnectTimeout(Duration),
    #[error("the worker answered batch {0}, which it was not sent")]
    UnknownBatch(u64),
    #[error("the worker is of another version, and does not share memory as this gateway does")]
    NoSharedMemory,
    #[error("the worker sent a message that is not allowed at this point")]
    UnexpectedMessage,
    #[error("the result of batch {0} is outside of the worker's memory")]
    OutOfRange(u64),
    #[error("a batch was not answered within {0:?}")]
    BatchTimeout(Duration),
}

impl ConnectionError {
    /// Returns the reason why a connection within TLS could not be made.
    pub(super) fn of_tls(error: io::Error, authorities: &Authorities) -> Self {
        use rustls::{AlertDescription, Error, InvalidMessage};

        if let Some(refusal) = authorities.refusal(&error) {
            return Self::Untrusted(refusal);
        }
        match tls_error(&error) {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Self::NotTls,
            Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => Self::OtherTls,
            Some(refused @ Error::AlertReceived(_)) => Self::Refused(refused.clone()),
            _ => Self::Io(error),
        }
    }
}
