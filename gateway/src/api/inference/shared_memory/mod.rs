//! Triton's system shared memory extension: clients on the gateway's host register regions, and requests name ranges of them in place
//! of tensors.
//!
//! It is off unless the operator turns it on. A client must connect over loopback and run as the gateway's user, which the kernel tells;
//! a region belongs to the tenant that registered it. Each region keeps a descriptor open until it is unregistered; a tenant has at most as many
//! as are free, so that there is always one for another (as with memory, [`crate::memory`]).

mod error;
mod region;
pub(in crate::api) mod routes;

pub(in crate::api) use error::SharedMemoryError;
pub(in crate::api) use routes::regions_of;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use axum::http::{Extensions, StatusCode};
use bytes::Bytes;
use packhorse_protocol::{RegionRange, Regions, RegisterSystemSharedMemory, SystemSharedMemory};
use packhorse_serving::TenantKey;
use rustix::process::geteuid;

use self::{
    error::{MAX_REGIONS, NAME_BYTES},
    region::Region,
};
use super::error::InferenceError;
use crate::{
    api::error::{INTERNAL_ERROR, off_reactor},
    memory::{MemoryExhausted, Reservation},
    serve::LocalClient,
};

/// The registered regions of all tenants. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::api) struct SharedMemory {
    regions: Arc<RwLock<RegionTable>>,
}

type RegionTable = BTreeMap<(TenantKey, String), Arc<Region>>;

impl SharedMemory {
    /// Returns the regions of a tenant, for its client that sent a request with these extensions.
    ///
    /// # Errors
    /// The client does not run on this host as the gateway's user.
    pub(in crate::api) async fn of_client(
        &self,
        tenant: TenantKey,
        extensions: &Extensions,
    ) -> Result<TenantRegions, SharedMemoryError> {
        let client = extensions.get::<Arc<LocalClient>>();
        let client = client.ok_or(SharedMemoryError::Stranger)?;
        if client.user().await != Some(geteuid().as_raw()) {
            return Err(SharedMemoryError::Stranger);
        }
        Ok(TenantRegions {
            memory: self.clone(),
            tenant,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut RegionTable) -> T) -> T {
        change(&mut self.regions.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn look<T>(&self, look: impl FnOnce(&RegionTable) -> T) -> T {
        look(&self.regions.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The regions of one tenant.
#[derive(Clone, Debug)]
pub(in crate::api) struct TenantRegions {
    memory: SharedMemory,
    tenant: TenantKey,
}

impl TenantRegions {
    /// Registers a region, which it opens on a thread for blocking work.
    pub(in crate::api) async fn register(
        &self,
        name: String,
        registration: RegisterSystemSharedMemory,
    ) -> Result<(), InferenceError> {
        if name.is_empty() || name.len() > NAME_BYTES {
            return Err(SharedMemoryError::Name.into());
        }
        let opened = name.clone();
        let open = move || Region::open(&opened, registration);
        // A panic is logged there.
        let region = off_reactor(open).await.map_err(|_| {
            InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_ERROR)
        })??;
        Ok(self.insert(name, Arc::new(region))?)
    }

    fn insert(&self, name: String, region: Arc<Region>) -> Result<(), SharedMemoryError> {
        self.memory.change(|regions| {
            let key = (self.tenant, name.clone());
            if regions.contains_key(&key) {
                return Err(SharedMemoryError::Taken(name));
            }
            let free = MAX_REGIONS.saturating_sub(regions.len());
            let own = of_tenant(regions, self.tenant).count();
            if own >= free {
                return Err(SharedMemoryError::TooMany(own));
            }
            regions.insert(key, region);
            Ok(())
        })
    }

    /// Forgets a region. As with Triton, one that is not there is no mistake.
    pub(in crate::api) fn unregister(&self, name: &str) {
        let key = (self.tenant, name.to_owned());
        self.memory.change(|regions| regions.remove(&key));
    }

    /// Forgets all regions of the tenant.
    pub(in crate::api) fn unregister_all(&self) {
        let is_kept =
            |(tenant, _): &(TenantKey, String), _: &mut Arc<Region>| *tenant != self.tenant;
        self.memory.change(|regions| regions.retain(is_kept));
    }

    /// Returns the regions of the tenant, by name.
    pub(in crate::api) fn list(&self) -> Vec<SystemSharedMemory> {
        self.memory.look(|regions| {
            let own = of_tenant(regions, self.tenant);
            own.map(|region| region.description().clone()).collect()
        })
    }

    /// Returns a region of the tenant as clients see it.
    pub(in crate::api) fn description(
        &self,
        name: &str,
    ) -> Result<SystemSharedMemory, SharedMemoryError> {
        Ok(self.find(name)?.description().clone())
    }

    /// Returns a region of the tenant.
    fn find(&self, name: &str) -> Result<Arc<Region>, SharedMemoryError> {
        let key = (self.tenant, name.to_owned());
        let found = self.memory.look(|regions| regions.get(&key).cloned());
        found.ok_or_else(|| SharedMemoryError::Unknown(name.to_owned()))
    }

    /// Returns an error unless the range is within its region.
    pub(in crate::api) fn check(&self, range: &RegionRange) -> Result<(), InferenceError> {
        let region = self.find(&range.region)?;
        let place = region.place(range.offset, range.bytes);
        place
            .map(|_| ())
            .map_err(|problem| refused(range, &problem))
    }

    /// Writes an output to its range, which may be longer.
    pub(in crate::api) fn write(
        &self,
        range: &RegionRange,
        data: &[u8],
    ) -> Result<(), InferenceError> {
        if data.len() as u64 > range.bytes {
            let problem = format!(
                "the output has {} bytes, and parameters.shared_memory_byte_size is {}",
                data.len(),
                range.bytes
            );
            return Err(refused(range, &problem));
        }
        let region = self.find(&range.region)?;
        let written = region.write(range.offset, data);
        written.map_err(|problem| refused(range, &problem))
    }
}

fn of_tenant(regions: &RegionTable, tenant: TenantKey) -> impl Iterator<Item = &Arc<Region>> {
    let own = regions.range((tenant, String::new())..);
    own.take_while(move |((owner, _), _)| *owner == tenant)
        .map(|(_, region)| region)
}

fn refused(range: &RegionRange, problem: &str) -> InferenceError {
    InferenceError::bad_request(format!(
        "shared memory region {:?}: {problem}",
        range.region
    ))
}

/// The regions that a request reads its inputs from. What is copied is reserved in the request's memory.
#[derive(Debug)]
pub(in crate::api) struct RegionReader<'a> {
    /// The tenant's regions, if the client may use any.
    regions: &'a Result<TenantRegions, SharedMemoryError>,
    memory: &'a mut Reservation,
    /// The bytes that may still be read: a request is limited wherever its tensors are.
    left: u64,
    /// The reason why memory could not be reserved.
    exhausted: Option<MemoryExhausted>,
}

impl<'a> RegionReader<'a> {
    /// Creates a reader of at most `limit` bytes.
    pub(in crate::api) fn new(
        regions: &'a Result<TenantRegions, SharedMemoryError>,
        memory: &'a mut Reservation,
        limit: u64,
    ) -> Self {
        Self {
            regions,
            memory,
            left: limit,
            exhausted: None,
        }
    }

    /// Returns the reason why memory could not be reserved, if that was why reading failed.
    pub(in crate::api) fn exhausted(&self) -> Option<MemoryExhausted> {
        self.exhausted
    }
}

impl Regions for RegionReader<'_> {
    fn read(&mut self, range: &RegionRange) -> Result<Bytes, String> {
        let regions = self.regions.as_ref().map_err(ToString::to_string)?;
        let region = regions.find(&range.region).map_err(|e| e.to_string())?;
        region.place(range.offset, range.bytes)?;
        self.left = self
            .left
            .checked_sub(range.bytes)
            .ok_or("the request's tensors are larger than the limit of a request")?;
        if let Err(exhausted) = self.memory.grow(range.bytes) {
            self.exhausted = Some(exhausted);
            return Err(exhausted.to_string());
        }
        region.read(range.offset, range.bytes)
    }
}
