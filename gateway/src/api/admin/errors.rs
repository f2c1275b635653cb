//! What the refusals of the control plane and the store become over HTTP.

use axum::http::StatusCode;

use crate::{
    api::ApiError,
    controller::{
        ExplainError, LeaseError, ModelError, NodeError, PairsError, PolicyError, PreviewError,
        RegisterError, StatusError, Stopped, WantedError,
    },
    store::{OpenArtifactError, ReceiveError, StoreError},
};

impl From<Stopped> for ApiError {
    fn from(error: Stopped) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::DiskFull(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            StoreError::Database(_) | StoreError::Unreadable { .. } => Self::internal(&error),
        }
    }
}

impl From<RegisterError> for ApiError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Invalid(_) | RegisterError::UnknownArtifact(_) => {
                Self::bad_request(error.to_string())
            }
            RegisterError::Exists(_) => Self::conflict(error.to_string()),
            RegisterError::TooMany => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            RegisterError::Store(e) => e.into(),
        }
    }
}

impl From<PairsError> for ApiError {
    fn from(error: PairsError) -> Self {
        match error {
            PairsError::TooMany(_) => Self::bad_request(error.to_string()),
            PairsError::Store(e) => e.into(),
        }
    }
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::UnknownName(_) | ModelError::UnknownVersion(..) => {
                Self::not_found(error.to_string())
            }
            ModelError::Invalid(_) => Self::bad_request(error.to_string()),
            ModelError::Store(e) => e.into(),
        }
    }
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Unknown(_) => Self::not_found(error.to_string()),
            NodeError::Store(e) => e.into(),
        }
    }
}

impl From<PolicyError> for ApiError {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Unknown(_) => Self::bad_request(error.to_string()),
            PolicyError::Store(e) => e.into(),
        }
    }
}

impl From<PreviewError> for ApiError {
    fn from(error: PreviewError) -> Self {
        match error {
            PreviewError::Policy(_)
            | PreviewError::Model { .. }
            | PreviewError::Invalid(_)
            | PreviewError::UnknownKind(_)
            | PreviewError::TooManyDevices => Self::bad_request(error.to_string()),
            PreviewError::Busy(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
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
            ExplainError::Busy(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            ExplainError::Failed(_) => Self::internal(&error),
        }
    }
}

impl From<LeaseError> for ApiError {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Held(_) => Self::conflict(error.to_string()),
            LeaseError::Invalid { .. } => Self::bad_request(error.to_string()),
            LeaseError::TooMany => Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
            LeaseError::Store(e) => e.into(),
        }
    }
}

impl From<StatusError> for ApiError {
    fn from(error: StatusError) -> Self {
        match error {
            StatusError::NotHeld(_) => Self::conflict(error.to_string()),
            StatusError::TooMany { .. } => Self::bad_request(error.to_string()),
        }
    }
}

impl From<WantedError> for ApiError {
    fn from(error: WantedError) -> Self {
        Self::conflict(error.to_string())
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
            ReceiveError::Digest { .. } | ReceiveError::NotFound => {
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
