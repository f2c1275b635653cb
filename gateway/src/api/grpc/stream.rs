//! `ModelStreamInfer`: many requests on one call, which are computed side by side and answered in their order.
//!
//! As with Triton, a request that is refused or fails has an answer with an error, and the stream goes on. What is wrong with the stream itself ends it
//! with a status, after the answers to what came before.

use std::{future::ready, pin::Pin, sync::Arc};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use packhorse_grpc::{Prefix, framed, write_stream_response};
use packhorse_protocol::ByteRope;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    caller::Caller,
    decoding::Received,
    messages::MessageReader,
    reply::{Reply, many},
    state::Grpc,
    status::{CallCount, Status},
    turn::Turn,
};
use crate::{
    api::inference::error::InferenceError, memory::Reservation, serve::Stopping,
    telemetry::HttpMeasurement,
};

/// The most requests of a stream that are computed or wait for their turn to be answered. Further ones wait in the connection.
pub(super) const IN_FLIGHT: usize = 64;

/// Runs inference for each request of a stream.
pub(super) async fn model_stream_infer(State(grpc): State<Grpc>, request: Request) -> Response {
    let stopping = Stopping::of(request.extensions());
    let measurement = HttpMeasurement::begin(grpc.telemetry(), &request);
    let (caller, reader) = match Caller::new(grpc, request) {
        Ok(caller) => caller,
        Err(error) => return Status::from(error).into_response(),
    };
    let unread = match caller.grpc.unread(&caller.extensions) {
        Ok(unread) => unread,
        Err(error) => return Status::from(error).into_response(),
    };
    let compression = caller.head.compression;
    let (sender, receiver) = mpsc::channel(1);
    let answering = Answering {
        caller: Arc::new(caller),
        in_flight: FuturesOrdered::new(),
        replies: sender,
        measurement,
        requests: 0,
        _unread: unread,
    };
    let task = tokio::spawn(answering.run(reader, stopping));
    let mut response = many(receiver, task.abort_handle(), Some(compression));
    response.extensions_mut().insert(CallCount::ByRequest);
    response
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is read of a stream.
enum Reading {
    /// The beginning of the next request.
    Waiting(Boxed<(MessageReader, Result<Option<Prefix>, InferenceError>)>),
    /// A request.
    Receiving(Boxed<(MessageReader, Turn, Result<Received, InferenceError>)>),
    /// Nothing, while as many requests as may are in flight.
    Paused(MessageReader),
    /// Nothing any more.
    Ended,
}

/// What came of reading.
enum Event {
    Next(MessageReader, Result<Option<Prefix>, InferenceError>),
    Request(Box<(MessageReader, Turn, Result<Received, InferenceError>)>),
}

impl Reading {
    fn wait(mut reader: MessageReader) -> Self {
        Self::Waiting(Box::pin(async move {
            let next = reader.next().await;
            (reader, next)
        }))
    }

    /// Waits for what is read. This may be given up and begun again.
    async fn event(&mut self) -> Event {
        match self {
            Self::Waiting(next) => {
                let (reader, next) = next.await;
                Event::Next(reader, next)
            }
            Self::Receiving(request) => Event::Request(Box::new(request.await)),
            Self::Paused(_) | Self::Ended => std::future::pending().await,
        }
    }
}

/// A stream that is being answered.
struct Answering {
    caller: Arc<Caller>,
    in_flight: FuturesOrdered<Boxed<Reply>>,
    replies: mpsc::Sender<Result<Reply, Status>>,
    measurement: HttpMeasurement,
    /// The requests so far.
    requests: u64,
    /// The memory of what has come and is not read, while as many requests as may are in flight, or the client takes no answers.
    _unread: Reservation,
}

impl Answering {
    /// Answers until the stream has ended, and then tells how.
    async fn run(mut self, reader: MessageReader, stopping: CancellationToken) {
        let patience = self.caller.head.patience;
        let end = patience.and_then(|patience| Instant::now().checked_add(patience));
        let over = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let mut over = Box::pin(over);
        let mut reading = Reading::wait(reader);
        let mut status = Status::ok();
        let mut is_stopping = false;
        loop {
            let is_ended = matches!(reading, Reading::Ended);
            if is_ended && self.in_flight.is_empty() {
                break;
            }
            tokio::select! {
                Some(reply) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    if self.replies.send(Ok(reply)).await.is_err() {
                        // The client has gone.
                        return;
                    }
                    reading = match reading {
                        Reading::Paused(reader) => Reading::wait(reader),
                        other => other,
                    };
                }
                event = reading.event(), if !is_ended => {
                    reading = match event {
                        Event::Next(reader, Ok(Some(prefix))) => self.receive(reader, prefix),
                        Event::Next(_, Ok(None)) => Reading::Ended,
                        Event::Next(_, Err(error)) => {
                            status = error.into();
                            Reading::Ended
                        }
                        Event::Request(request) => self.answer(*request),
                    };
                }
                () = stopping.cancelled(), if !is_stopping => {
                    is_stopping = true;
                }
                () = over.as_mut() => {
                    let error = InferenceError::new(StatusCode::GATEWAY_TIMEOUT, "the time of the call (grpc-timeout) is over");
                    status = error.into();
                    break;
                }
            }
            if is_stopping && matches!(reading, Reading::Waiting(_) | Reading::Paused(_)) {
                // What has begun is still answered.
                status = InferenceError::shutting_down().into();
                reading = Reading::Ended;
            }
        }
        if self.requests == 0 || status.http() != StatusCode::OK {
            // Its requests are counted, each by itself, and not that all of them are over.
            let telemetry = self.caller.grpc.telemetry();
            self.measurement.end_as(telemetry, status.http());
        }
        let _ = self.replies.send(Err(status)).await;
    }

    /// Begins to receive a request.
    fn receive(&mut self, mut reader: MessageReader, prefix: Prefix) -> Reading {
        self.requests += 1;
        let mut turn = Turn::of_stream(Arc::clone(&self.caller), self.requests);
        Reading::Receiving(Box::pin(async move {
            let received = turn.receive(&mut reader, prefix).await;
            (reader, turn, received)
        }))
    }

    /// Has a request answered, and reads the next.
    fn answer(
        &mut self,
        (reader, mut turn, received): (MessageReader, Turn, Result<Received, InferenceError>),
    ) -> Reading {
        let measurement = self.measurement.of_part(turn.arrived());
        self.in_flight.push_back(match received {
            Ok(received) => Box::pin(async move {
                let answered = turn.answer(received).await;
                reply(turn, measurement, answered.map(|answered| answered.frame))
            }),
            Err(error) => Box::pin(ready(reply(turn, measurement, Err(error)))),
        });
        if self.in_flight.len() < IN_FLIGHT {
            Reading::wait(reader)
        } else {
            Reading::Paused(reader)
        }
    }
}

/// Counts a request, and returns the answer to it, which may be an error.
fn reply(
    mut turn: Turn,
    measurement: HttpMeasurement,
    answered: Result<ByteRope, InferenceError>,
) -> Reply {
    let status = answered.as_ref().err().map(InferenceError::status);
    measurement.end_as(
        turn.caller.grpc.telemetry(),
        status.unwrap_or(StatusCode::OK),
    );
    let held = turn.finish(status.map_or(Ok(()), Err));
    let frame = answered.unwrap_or_else(|error| {
        let message = write_stream_response(Err((turn.id(), error.message().to_owned())));
        // An error is short.
        framed(message, false).unwrap_or_default()
    });
    Reply { frame, held }
}
