//! The names of the headers that are looked up in every request. They are made once, because looking one up by a text parses the text.

use axum::http::HeaderName;

/// The length of the JSON part of a body in bytes.
pub(in crate::api) static HEADER_LENGTH: HeaderName =
    HeaderName::from_static(packhorse_protocol::HEADER_LENGTH);

/// The header by which a client asks for the durations of the stages.
pub(in crate::api) static STAGES: HeaderName =
    HeaderName::from_static(packhorse_api::STAGES_HEADER);
