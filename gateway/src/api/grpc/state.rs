//! The state that the handlers share.

use std::ops::Deref;

use packhorse_serving::TenantKey;

use crate::{
    api::inference::Inference,
    memory::{ModelMemory, Reservation},
};

/// The state that the handlers share. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Grpc {
    inference: Inference,
    /// The books of messages whose model is not known yet, or that are for none.
    unnamed: ModelMemory,
}

impl Grpc {
    pub(super) fn new(inference: Inference) -> Self {
        let unnamed = inference.data_plane.memory().model();
        Self { inference, unnamed }
    }

    /// Returns a reservation for a message whose model is not known.
    pub(super) fn reservation(&self, tenant: TenantKey) -> Reservation {
        self.unnamed.tenant(tenant).reservation()
    }

    /// Returns the state of the inference API.
    pub(super) fn inference(&self) -> &Inference {
        &self.inference
    }
}

impl Deref for Grpc {
    type Target = Inference;

    fn deref(&self) -> &Inference {
        &self.inference
    }
}
