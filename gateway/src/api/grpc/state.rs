//! The state that the handlers share.

use std::ops::Deref;

use axum::http::Extensions;
use packhorse_serving::TenantKey;

use crate::{
    api::inference::{Inference, error::InferenceError},
    memory::Reservation,
    serve::STREAM_WINDOW,
    tenant::tenant_of,
};

/// The state that the handlers share. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Grpc {
    inference: Inference,
}

impl Grpc {
    pub(super) fn new(inference: Inference) -> Self {
        Self { inference }
    }

    /// Returns a reservation for a message whose model is not known.
    pub(super) fn reservation(&self, tenant: TenantKey) -> Reservation {
        self.unnamed.tenant(tenant).reservation()
    }

    /// Returns the memory for what a client's stream of requests may send before it is read.
    ///
    /// # Errors
    /// The client holds its share of the budget, or the budget is exhausted.
    pub(super) fn unread(&self, extensions: &Extensions) -> Result<Reservation, InferenceError> {
        let mut memory = self.reservation(tenant_of(extensions));
        memory.grow(STREAM_WINDOW.into())?;
        Ok(memory)
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
