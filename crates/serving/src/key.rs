//! The numbers by which the engine and its driver refer to models, replicas, devices, requests and batches.

macro_rules! key {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

key!(
    /// A model version's number, chosen by the driver.
    ModelKey(u32)
);
key!(
    /// A replica's number, chosen by the driver. A number is not used again before its replica was lost or drained.
    ReplicaKey(u32)
);
key!(
    /// A device's number, chosen by the driver. Replicas of one device slow each other.
    DeviceKey(u32)
);
key!(
    /// A request's number, chosen by the driver. A number is not used again before its request ended.
    RequestKey(u64)
);
key!(
    /// A tenant's number, chosen by the driver. Tenants share an overloaded model, and pay for what their own requests do to it.
    TenantKey(u64)
);
key!(
    /// A batch's number, chosen by the engine and never used twice.
    BatchKey(u64)
);
key!(
    /// The driver's number for the non-batch shapes of a request's inputs, counted from 0. Only requests of one class share a batch.
    ShapeClass(u64)
);

/// The bits of a shape class that are the driver's; the others say who is kept apart.
const DRIVER_BITS: u32 = 58;

impl ShapeClass {
    /// Returns the class for the requests of a tenant that is kept apart, by its number, which is less than 62. Requests that share batches with nobody
    /// have one of their own already.
    pub(crate) fn apart(self, slot: u8) -> Self {
        if self.0 >> DRIVER_BITS == u64::MAX >> DRIVER_BITS {
            return self;
        }
        let class = self.0 & ((1 << DRIVER_BITS) - 1);
        Self(class | (u64::from(slot) + 1) << DRIVER_BITS)
    }

    /// Returns a class for requests that share batches with nobody else, by a number that no other request or batch has.
    pub(crate) fn own(number: u64) -> Self {
        Self(u64::MAX - number)
    }
}
