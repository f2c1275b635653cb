//! A request as the engine sees it.

use packhorse_cluster::Time;

use crate::{ModelKey, RequestKey, ShapeClass, TenantKey};

/// A request as it arrives. The driver has checked it against its model's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The request's number.
    pub id: RequestKey,
    /// The model that shall answer it.
    pub model: ModelKey,
    /// The tenant that sends it.
    pub tenant: TenantKey,
    /// The rows that it adds to a batch, at least 1.
    pub rows: u32,
    /// The bytes that its inputs add to a batch, padding included.
    pub bytes: u64,
    /// The class of requests that it may share a batch with.
    pub class: ShapeClass,
    /// The priority, as Triton counts: 1 is the highest, larger is lower, 0 is the default, which lies between 2 and 4.
    pub priority: u64,
    /// True if the fallback of its model may answer it: it is for a family, and not for that model alone.
    pub may_fall_back: bool,
    /// The time at which the answer is due.
    pub deadline: Time,
    /// The time at which the answer is due at the latest if the weights of its model are in files only when it comes, and have to be loaded first. A request
    /// that cannot be answered by then is refused.
    pub load_by: Time,
}

impl Request {
    /// Returns the bytes that each of its rows adds to a batch, rounded up.
    pub(crate) fn bytes_per_row(&self) -> u64 {
        self.bytes.div_ceil(u64::from(self.rows.max(1)))
    }
}
