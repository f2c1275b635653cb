//! `ModelInfer`.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse as _, Response},
};
use packhorse_api::{CACHE_HEADER, MODEL_HEADER, SERVER_TIMING_HEADER, STAGES_HEADER};

use super::{
    caller::Caller,
    reply::{Reply, one},
    state::Grpc,
    status::Status,
    turn::Turn,
    unary::within,
};
use crate::api::inference::{computation::timing, error::InferenceError};

/// Runs inference on a model, or on a family, as `POST /v2/models/{model}/infer` does.
pub(super) async fn model_infer(State(grpc): State<Grpc>, request: Request) -> Response {
    let wants_timing = request.headers().contains_key(STAGES_HEADER);
    let clock = grpc.data_plane.clock();
    let (caller, mut reader) = match Caller::new(grpc, request) {
        Ok(caller) => caller,
        Err(error) => return Status::from(error).into_response(),
    };
    let patience = caller.head.patience;
    let mut turn = Turn::of_call(caller);
    let answer = async {
        let prefix = reader.only().await?;
        let received = turn.receive(&mut reader, prefix).await?;
        // What comes after the only message is not kept.
        drop(reader);
        turn.answer(received).await
    };
    let answered = within(patience, answer).await;
    let result = answered.as_ref().map(|_| ());
    let held = turn.finish(result.map_err(InferenceError::status));
    match answered {
        Ok(answered) => {
            let compression = turn.caller.head.compression;
            let compression = answered.is_compressed.then_some(compression);
            let reply = Reply {
                frame: answered.frame,
                held,
            };
            let mut response = one(reply, compression);
            let headers = response.headers_mut();
            if wants_timing {
                let timing = timing(&answered.course, &answered.times).to_string();
                insert(headers, SERVER_TIMING_HEADER, &timing);
            }
            if let Some(variant) = &answered.variant {
                insert(headers, MODEL_HEADER, variant);
            }
            if let Some(cache) = answered.course.cache {
                insert(headers, CACHE_HEADER, cache.name());
            }
            response
        }
        Err(error) => {
            let retry_after = turn.retry_after(clock.now());
            let error = retry_after.map_or(error.clone(), |after| error.or_retry_after(after));
            tracing::debug!(
                request.id = turn.caller.identity.id(),
                http.status = error.status().as_u16(),
                error = error.message(),
                "a request was not answered"
            );
            Status::from(error).into_response()
        }
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}
