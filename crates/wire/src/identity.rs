//! A worker's identity, and the proofs of the handshake.

use std::fmt;

use packhorse_cluster::{ArtifactDigest, Generation, ReplicaId};

use crate::{codec::Reader, error::DecodeError};

/// Random bytes that are used only once.
pub type Nonce = [u8; 32];
/// The proof that a side has the secret: an HMAC-SHA256.
pub type Proof = [u8; 32];

/// The identity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// The replica that it runs.
    pub replica: ReplicaId,
    /// The program that it runs.
    pub artifact: ArtifactDigest,
    /// The most rows that it takes in one batch.
    pub batch_size: u32,
}

impl fmt::Display for WorkerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replica {} of {} with batches of {}",
            self.replica, self.artifact, self.batch_size
        )
    }
}

/// Appends the identity of a replica.
pub(crate) fn encode_replica(out: &mut Vec<u8>, replica: ReplicaId) {
    out.extend_from_slice(&replica.generation.0.to_le_bytes());
    out.extend_from_slice(&replica.number.to_le_bytes());
}

pub(crate) fn parse_replica(reader: &mut Reader<'_>) -> Result<ReplicaId, DecodeError> {
    Ok(ReplicaId {
        generation: Generation(reader.u64()?),
        number: reader.u32()?,
    })
}

impl WorkerIdentity {
    /// Appends the identity. The handshake's proofs are computed over these bytes, too.
    pub(crate) fn encode_metadata(&self, out: &mut Vec<u8>) {
        encode_replica(out, self.replica);
        out.extend_from_slice(self.artifact.as_bytes());
        out.extend_from_slice(&self.batch_size.to_le_bytes());
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            replica: parse_replica(reader)?,
            artifact: ArtifactDigest::from_sha256(reader.array()?),
            batch_size: reader.u32()?,
        })
    }
}
