//! The HTTP status of each error of the control plane and the store.

use axum::http::StatusCode;
use packhorse_api::agent::InvalidField;
use packhorse_control::{CommandError, WriteError};
use packhorse_placement::UnknownPolicy;

use crate::{
    api::ApiError,
    controller::{Busy, ExplainError, PreviewError, Stopped, WantedError},
    store::{OpenArtifactError, ReceiveError, SnapshotError, StoreError},
};

impl From<Stopped> for ApiError {
    fn from(error: Stopped) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<Busy> for ApiError {
    fn from(error: Busy) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::DiskFull(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            StoreError::Unavailable(_) | StoreError::Superseded(_) => Self::unavailable(&error),
            StoreError::Database(_) | StoreError::Unreadable { .. } => Self::internal(&error),
        }
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        let status = match &error {
            CommandError::InvalidModel(_)
            | CommandError::InvalidField { .. }
            | CommandError::UnknownArtifact(_)
            | CommandError::RateOfOlderVersion(..)
            | CommandError::FamilyOfVersion(_)
            | CommandError::TooManyPairs(_) => StatusCode::BAD_REQUEST,
            CommandError::UnknownModel(_)
            | CommandError::UnknownVersion(..)
            | CommandError::UnknownNode(_) => StatusCode::NOT_FOUND,
            CommandError::ModelExists(_)
            | CommandError::Conflict { .. }
            | CommandError::NoEarlierSplit(_)
            | CommandError::NodeInUse(_)
            | CommandError::LeaseHeld(_)
            | CommandError::LeaseNotHeld(_) => StatusCode::CONFLICT,
            CommandError::TooManyModels
            | CommandError::TooManyNodes
            | CommandError::NotStored(WriteError::DiskFull) => StatusCode::INSUFFICIENT_STORAGE,
            CommandError::Busy | CommandError::NotStored(WriteError::Unavailable) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            CommandError::NotStored(_) => return Self::internal(&error),
        };
        Self::new(status, error.to_string())
    }
}

impl From<UnknownPolicy> for ApiError {
    fn from(error: UnknownPolicy) -> Self {
        Self::bad_request(format!("policy: {error}"))
    }
}

impl From<PreviewError> for ApiError {
    fn from(error: PreviewError) -> Self {
        match error {
            PreviewError::Policy(_)
            | PreviewError::Discipline(_)
            | PreviewError::Model { .. }
            | PreviewError::Invalid(_)
            | PreviewError::ModelExists(_)
            | PreviewError::NoProfile(_)
            | PreviewError::TooManyModels(_)
            | PreviewError::UnknownKind(_)
            | PreviewError::TooManyDeviceEntries
            | PreviewError::TooManyDevices
            | PreviewError::TooFewDevices { .. } => Self::bad_request(error.to_string()),
            PreviewError::Busy(busy) => busy.into(),
            PreviewError::NoPlan(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            }
        }
    }
}

impl From<ExplainError> for ApiError {
    fn from(error: ExplainError) -> Self {
        match error {
            ExplainError::NoPlan => Self::not_found(error.to_string()),
            ExplainError::Outdated(_) => Self::conflict(error.to_string()),
            ExplainError::Busy(busy) => busy.into(),
            ExplainError::Failed(_) => Self::internal(&error),
        }
    }
}

impl From<InvalidField> for ApiError {
    fn from(error: InvalidField) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<WantedError> for ApiError {
    fn from(error: WantedError) -> Self {
        Self::conflict(error.to_string())
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::NotAFile => Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string()),
            SnapshotError::Busy => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            SnapshotError::DiskFull => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            SnapshotError::Write(_) => Self::internal(&error),
            SnapshotError::Store(e) => e.into(),
        }
    }
}

impl From<OpenArtifactError> for ApiError {
    fn from(error: OpenArtifactError) -> Self {
        match error {
            OpenArtifactError::Unknown(_) => Self::not_found(error.to_string()),
            OpenArtifactError::Damaged(..) => Self::internal(&error),
            OpenArtifactError::Store(e) => e.into(),
        }
    }
}

impl From<ReceiveError> for ApiError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Digest { .. } | ReceiveError::NotFound | ReceiveError::Damaged(_) => {
                Self::bad_request(error.to_string())
            }
            ReceiveError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            ReceiveError::Read(_) => Self::new(StatusCode::REQUEST_TIMEOUT, error.to_string()),
            ReceiveError::DiskFull => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            ReceiveError::Write(_) => Self::internal(&error),
            ReceiveError::Store(e) => e.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ArtifactDigest, ByteCount};

    use super::*;

    fn check(error: impl Into<ApiError>, status: u16, message: &str) {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(error.into(), ApiError::new(status, message));
    }

    #[test]
    fn errors_of_models_and_artifacts_have_their_status_and_sentence() {
        let digest = ArtifactDigest::from_sha256([0; 32]);
        let zeros = "sha256:".to_owned() + &"0".repeat(64);
        check(
            CommandError::ModelExists("m:2".parse().unwrap()),
            409,
            "model m:2 is already registered; choose another version or remove it first",
        );
        check(
            CommandError::UnknownArtifact(digest),
            400,
            &format!(
                "artifact: {zeros} is not stored; upload it first with PUT /v1/artifacts/{zeros}"
            ),
        );
        check(
            CommandError::TooManyModels,
            507,
            "at most 10000 model versions can be registered; remove one first",
        );
        check(
            CommandError::UnknownModel("m".parse().unwrap()),
            404,
            "model m is not registered",
        );
        check(
            CommandError::UnknownVersion("m".parse().unwrap(), 2.try_into().unwrap()),
            404,
            "model m has no version 2",
        );
        check(
            ReceiveError::Digest {
                announced: digest,
                received: ArtifactDigest::from_sha256([0x11; 32]),
            },
            400,
            &format!(
                "the received bytes have the digest sha256:{}, not {zeros}",
                "1".repeat(64)
            ),
        );
        check(
            ReceiveError::TooLarge(ByteCount::new(1000)),
            413,
            "the artifact is larger than the limit of 1000 bytes (--artifact-limit-bytes)",
        );
        check(
            ReceiveError::Read(std::io::Error::other("reset")),
            408,
            "the artifact ended early or arrived too slowly",
        );
        check(
            ReceiveError::DiskFull,
            507,
            "no space is left on the gateway's disk",
        );
        check(
            ReceiveError::NotFound,
            400,
            "no artifact root (--artifact-root) contains a readable file with this path",
        );
        check(
            OpenArtifactError::Unknown(digest),
            404,
            &format!("artifact {zeros} is not stored"),
        );
    }

    #[test]
    fn a_full_disk_is_told_from_one_that_fails_and_from_a_fault_of_ours() {
        const FULL: &str = "no space is left on the disk of the database";
        const FAILS: &str = "the database cannot be read or written now; look before you retry a change (the cause is in the gateway's log)";
        check(StoreError::from(EngineError::of("13")), 507, FULL);
        // SQLITE_IOERR_SHMSIZE: there is no room for the index of the write-ahead log.
        check(StoreError::from(EngineError::of("4874")), 507, FULL);
        // SQLITE_IOERR_FSYNC, SQLITE_BUSY_SNAPSHOT, SQLITE_NOMEM, SQLITE_CORRUPT.
        for code in ["1034", "517", "7", "11"] {
            check(StoreError::from(EngineError::of(code)), 503, FAILS);
        }
        check(StoreError::from(sqlx::Error::PoolTimedOut), 503, FAILS);
        // The SQLSTATEs of a full disk; of a server that stops, starts, is a standby, has no connection left, and waits for too long.
        check(StoreError::from(EngineError::of("53100")), 507, FULL);
        for code in ["57P01", "57P03", "25006", "53300", "57014", "55P03"] {
            check(StoreError::from(EngineError::of(code)), 503, FAILS);
        }
        let ours = StoreError::from(EngineError::of("42601"));
        check(ours, 500, crate::api::error::INTERNAL_ERROR);
        // SQLITE_ERROR.
        let ours = StoreError::from(EngineError::of("1"));
        check(ours, 500, crate::api::error::INTERNAL_ERROR);
    }

    /// An error of the database engine with a result code.
    #[derive(Debug, thiserror::Error)]
    #[error("code {0}")]
    struct EngineError(&'static str);

    impl EngineError {
        fn of(code: &'static str) -> sqlx::Error {
            sqlx::Error::Database(Box::new(Self(code)))
        }
    }

    impl sqlx::error::DatabaseError for EngineError {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    #[test]
    fn errors_of_nodes_have_their_status_and_sentence() {
        let node = || "n".parse().unwrap();
        check(
            CommandError::UnknownNode(node()),
            404,
            "no node has the name n",
        );
        check(
            CommandError::LeaseHeld(node()),
            409,
            "another agent holds the lease of node n; \
             start this agent with another --node, or wait until that lease expires",
        );
        check(
            CommandError::InvalidField {
                field: "instance",
                problem: "expected 1 to 128 bytes".to_owned(),
            },
            400,
            "instance: expected 1 to 128 bytes",
        );
        check(
            CommandError::TooManyNodes,
            507,
            "at most 1024 nodes can join; remove one with DELETE /v1/nodes/NAME first",
        );
        check(
            CommandError::NodeInUse(node()),
            409,
            "the agent of node n holds the lease; stop the agent first",
        );
        check(
            CommandError::LeaseNotHeld(node()),
            409,
            "this agent does not hold the lease of node n; take the lease first",
        );
        check(
            CommandError::InvalidField {
                field: "gpus",
                problem: "at most 64 entries are allowed".to_owned(),
            },
            400,
            "gpus: at most 64 entries are allowed",
        );
        check(
            WantedError::NotHeld(node()),
            409,
            "no agent holds the lease of node n; take the lease first",
        );
        check(
            WantedError::NotReported,
            409,
            "the node has not reported its status yet; report the status first",
        );
    }

    #[test]
    fn errors_of_plans_have_their_status_and_sentence() {
        check(Stopped, 503, "the gateway is shutting down");
        check(
            PreviewError::Busy(Busy),
            503,
            "at most 4 previews and explanations run at once; retry in a few seconds",
        );
        check(
            ExplainError::Busy(Busy),
            503,
            "at most 4 previews and explanations run at once; retry in a few seconds",
        );
        check(ExplainError::NoPlan, 404, "no plan has been made yet");
        let violation = packhorse_cluster::Violation::Dangling { replica: 3 };
        check(
            ExplainError::Outdated(violation.clone()),
            409,
            &format!(
                "the current plan no longer fits the cluster, and the new one is not made yet ({violation}); \
                 retry in a few seconds"
            ),
        );
        check(
            PreviewError::Model {
                field: "remove",
                source: CommandError::UnknownModel("m".parse().unwrap()),
            },
            400,
            "remove: model m is not registered",
        );
        check(
            PreviewError::UnknownKind("abacus".parse().unwrap()),
            400,
            "devices.kind: abacus is unknown: no node has such a device, and there is no built-in data sheet",
        );
        check(
            PreviewError::TooManyDevices,
            400,
            "devices.count: at most 1024 devices can be added in one preview",
        );
        check(
            CommandError::TooManyPairs(1025),
            400,
            "at most 1024 pairs per kind of device are allowed, got 1025",
        );
        check(
            CommandError::NotStored(WriteError::DiskFull),
            507,
            "no space is left on the disk of the database",
        );
        check(
            CommandError::NotStored(WriteError::Unavailable),
            503,
            "the database cannot be written now; look whether the change is there before you retry (the cause is in the gateway's log)",
        );
        check(
            CommandError::Busy,
            503,
            "1024 commands wait for the database; retry in a few seconds",
        );
    }
}
