//! The reading of a request's message: decompressed, decoded and checked against its model; on the pool where that takes long.

use packhorse_grpc::{
    Beginning, Layout, LayoutError, beginning, messages::inference::ModelInferRequest,
    names_region, read_request,
};
use packhorse_protocol::{ByteRope, Limits, RequestError};
use packhorse_serving::Refusal;

use super::{caller::Caller, unary::decoded};
use crate::{
    api::inference::{
        computation::{Arrival, LARGE_TEXT, ReceivedRequest, is_scanned},
        error::InferenceError,
        model_path::ModelPath,
        shared_memory::{RegionReader, SharedMemoryError},
        work_pool::Party,
    },
    memory::Reservation,
};

/// A request whose bytes have come.
pub(super) struct Received {
    pub(super) message: ByteRope,
    pub(super) is_compressed: bool,
    /// True if it is refused where the queue has become too long meanwhile.
    pub(super) may_be_hopeless: bool,
    pub(super) memory: Reservation,
}

impl Received {
    /// Returns the name and the version of the model, as far as they are known without decompressing the message.
    ///
    /// # Errors
    /// The message has more parts than a request may have.
    pub(super) fn model(&self) -> Result<Option<(String, String)>, InferenceError> {
        if self.is_compressed {
            return Ok(None);
        }
        let message = self.message.to_bytes();
        // The layout limits the fields that are passed.
        Layout::of(&message, &Limits::default())?;
        Ok(match beginning(&message, true) {
            Beginning::Model { name, version } => Some((name.to_owned(), version.to_owned())),
            Beginning::NeedsMore | Beginning::Elsewhere => None,
        })
    }
}

/// A request that was decoded.
pub(super) struct Decoded {
    pub(super) request: ModelInferRequest,
    layout: Layout,
    pub(super) memory: Reservation,
}

/// Decodes a request; on the pool if that takes long.
pub(super) async fn read(
    caller: &Caller,
    party: Party,
    received: Received,
) -> Result<Decoded, InferenceError> {
    let Caller { grpc, head, .. } = caller;
    let (compression, limit) = (head.compression, grpc.limits.body_bytes);
    let Received {
        message,
        is_compressed,
        mut memory,
        ..
    } = received;
    if !is_compressed {
        let layout = layout_of(&message)?;
        if layout.decoded_bytes < LARGE_TEXT {
            return decode(&message, layout, memory);
        }
    }
    let work = move || {
        let message = if is_compressed {
            compression.inflate(message, limit, &mut memory)?
        } else {
            message
        };
        // In one piece, which raw tensors are slices of.
        if message.chunks().len() > 1 {
            memory.grow(message.len() as u64)?;
        }
        let message = ByteRope::from(message.to_bytes());
        let layout = layout_of(&message)?;
        decode(&message, layout, memory)
    };
    grpc.pool.parse(party, work).await?
}

/// Checks a request against its model; on the pool if that takes long.
pub(super) async fn check(
    caller: &Caller,
    (path, party): (&ModelPath, Party),
    arrival: &Arrival<'_>,
    decoded: Decoded,
    may_be_hopeless: bool,
) -> Result<ReceivedRequest, InferenceError> {
    let grpc = &caller.grpc;
    let tenant = party.tenant;
    let Decoded {
        request,
        layout,
        mut memory,
    } = decoded;
    let regions = match &grpc.shared_memory {
        Some(shared) if names_region(&request) => {
            shared.of_client(tenant, arrival.extensions).await
        }
        _ => Err(SharedMemoryError::Off),
    };
    let requested = path.requested.clone();
    let mut inputs = requested.model.spec.program.inputs.iter();
    let scanned = inputs.any(is_scanned).then_some(layout.raw_bytes);
    let looked_at = layout.decoded_bytes + scanned.unwrap_or_default();
    // Pictures and texts take longer than their bytes tell.
    let takes_raw_inputs = !requested.model.spec.processing.preprocess.is_empty();
    let is_light = regions.is_err() && looked_at < LARGE_TEXT && !takes_raw_inputs;
    let (clock, arrived) = (grpc.data_plane.clock(), arrival.at);
    let body_limit = grpc.limits.body_bytes;
    let parse = move || {
        // The message and the pool have taken their time.
        if let Some(refusal) = requested.refusal(tenant) {
            return Err(refusal.into());
        }
        if may_be_hopeless && requested.is_hopeless(clock.now(), arrived, tenant) {
            return Err(Refusal::CannotMeetDeadline.into());
        }
        let mut reader = RegionReader::new(&regions, &mut memory, body_limit);
        let read = read_request(request, &Limits::default(), &mut reader);
        if let Some(exhausted) = reader.exhausted() {
            return Err(exhausted.into());
        }
        let message = read.map_err(RequestError::from)?;
        let times = (clock, arrived);
        ReceivedRequest::checked(message, memory, regions, &requested.model, times)
    };
    if is_light {
        return parse();
    }
    grpc.pool.parse(party, parse).await?
}

impl From<LayoutError> for InferenceError {
    fn from(error: LayoutError) -> Self {
        Self::bad_request(error.to_string())
    }
}

fn layout_of(message: &ByteRope) -> Result<Layout, InferenceError> {
    Ok(Layout::of(&message.to_bytes(), &Limits::default())?)
}

/// Decodes a message within the budget.
fn decode(
    message: &ByteRope,
    layout: Layout,
    mut memory: Reservation,
) -> Result<Decoded, InferenceError> {
    memory.grow(Layout::decoding_memory(&message.to_bytes())?)?;
    Ok(Decoded {
        request: decoded(message)?,
        layout,
        memory,
    })
}
