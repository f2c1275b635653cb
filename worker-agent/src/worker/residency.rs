//! The memory of a worker with many programs: whose weights are on the device, within a limit.
//!
//! Gateways decide whose weights come and go, by what waits for them. Here they are carried out, one at a time, and what the process needs otherwise is
//! measured: a copy for which there is no room is not made, and where the process grows by other means, the weights that were used least recently
//! leave. Gateways are told of each change, and of the memory that there is for weights.
//!
//! The memory of a GPU is counted by those who allocate it. A simulated device has no memory to be measured: there, what is planned for the weights that
//! are on it counts, and for the largest batch.
//!
//! Weights that are not on the device are in memory, *warm*, up to a second limit. Beyond it the programs that were used least recently leave memory
//! altogether: they are *cold*, and are loaded again from their files when they are asked for.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::{ByteCount, ReplicaId};
use packhorse_reconcile::{WarmProgram, leaving};
use packhorse_wire::{WeightsPlace, WeightsReport};
use packhorse_worker_agent::devices::CUDA_CONTEXT;

use crate::{
    clock::now,
    executor::{self, ExecutionError, Executor, StartError, Weights},
    pipeline::DeviceFailed,
    process_memory,
    stored_program::StoredProgram,
};

/// The part of the limit that is left free: the kernel counts resident memory in steps.
const MARGIN: u64 = 4 << 20;
/// The part of the limit that gateways are not told of: the process grows and shrinks a little all the time, and a copy that is asked for should find its
/// room.
const HEADROOM: u64 = 4 << 20;
/// The change of the memory for weights of which gateways are told without another reason: what they were told last may have been little only while a
/// program was loaded.
const WORTH_TELLING: u64 = 2 << 20;
/// The memory that comes free at least where it is worth looking for memory that the process keeps.
const WORTH_TRIMMING: u64 = 1 << 20;
/// The most looks between two searches for such memory.
const MOST_PATIENCE: u32 = 64;
/// The time between two looks at the memory of the process.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The memory that counts against the limit of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedMemory {
    /// That of the process.
    Process,
    /// That of the CUDA device with this index, as far as the process has it.
    Cuda(u32),
    /// What is planned for the weights on a simulated device.
    Planned,
}

impl CountedMemory {
    /// Returns the part of a limit that is left free, for what nothing here counts.
    fn margin(self) -> u64 {
        match self {
            Self::Process => MARGIN,
            Self::Cuda(_) => CUDA_CONTEXT.as_u64(),
            Self::Planned => 0,
        }
    }

    /// Returns the memory now, of which there may be so much; `None` if it is unknown, or planned.
    fn measure(self, limit: u64) -> Option<u64> {
        let bytes = match self {
            Self::Process => process_memory::resident(),
            Self::Cuda(index) => executor::cuda_memory(index, limit),
            Self::Planned => None,
        };
        bytes.map(ByteCount::as_u64)
    }

    /// Returns the memory to the system that is kept although nothing uses it.
    fn release_free(self) {
        match self {
            Self::Process => executor::release_free_memory(),
            Self::Cuda(_) => executor::release_cuda_memory(),
            Self::Planned => {}
        }
    }
}

/// The weights of the programs of a worker.
pub(crate) struct Residency {
    /// The memory that the process may have; `None` for as much as there is.
    limit: Option<u64>,
    /// The bytes that warm weights may have together; `None` for as much as there is.
    warm_limit: Option<u64>,
    counted: CountedMemory,
    /// Tells that the device failed when weights were copied to it.
    device_failed: Box<dyn Fn(DeviceFailed) + Send + Sync>,
    /// The programs whose weights may leave. Its lock is held while weights come or go for others.
    members: Mutex<Members>,
    /// The memory for weights that gateways were told last.
    told: AtomicU64,
    start: Instant,
}

type Members = BTreeMap<ReplicaId, Arc<MemberWeights>>;

/// The weights of a program.
pub(crate) struct MemberWeights {
    residency: Arc<Residency>,
    replica: ReplicaId,
    program: Arc<StoredProgram>,
    /// The bytes that its largest batch is planned to need beside the weights.
    workspace: u64,
    /// The number of batches and orders that are under way.
    in_use: AtomicU32,
    /// The time of the last batch, or of the last copy, in nanoseconds since the start.
    used: AtomicU64,
    /// Tells gateways where the weights are. Returns false if there are none.
    changed: Box<dyn Fn() -> bool + Send + Sync>,
}

/// A use of a program, which stays in memory until this is dropped.
pub(crate) struct InUse(Arc<MemberWeights>);

impl Drop for InUse {
    fn drop(&mut self) {
        // Whoever wanted it to leave meanwhile has not had it leave.
        if self.0.in_use.fetch_sub(1, Relaxed) == 1 && self.0.is_warm() {
            self.0.residency.cool_now(None);
        }
    }
}

/// The members that have left the device, or memory, for others.
#[derive(Default)]
struct Gone {
    members: Vec<Arc<MemberWeights>>,
    /// The programs that have left memory, which takes time.
    programs: Vec<Arc<dyn Executor>>,
}

impl Gone {
    fn and(mut self, other: Self) -> Self {
        self.members.extend(other.members);
        self.programs.extend(other.programs);
        self
    }

    /// Tells gateways, and gives the memory back.
    fn tell(self) {
        drop(self.programs);
        for member in self.members {
            (member.changed)();
        }
    }
}

/// The searches for memory that the process keeps although nothing uses it, and that weights could have.
#[derive(Default)]
struct Trims {
    /// The looks until the next search.
    left: u32,
    /// The looks after a search that found nothing, at which the next one is.
    patience: u32,
}

impl Trims {
    /// Searches now and then while not all weights are there: often while that finds something.
    fn look(&mut self, residency: &Residency) {
        self.left = self.left.saturating_sub(1);
        let members = residency.lock();
        let is_scarce = members.values().any(|member| !member.is_resident());
        drop(members);
        if !is_scarce || self.left > 0 {
            return;
        }
        let anonymous = || process_memory::anonymous().map_or(0, ByteCount::as_u64);
        let before = anonymous();
        executor::release_free_memory();
        let found = before.saturating_sub(anonymous()) >= WORTH_TRIMMING;
        self.patience = if found {
            1
        } else {
            MOST_PATIENCE.min(2 * self.patience.max(1))
        };
        self.left = self.patience;
    }
}

fn resident_bytes(members: &Members) -> u64 {
    let resident = members.values().filter(|member| member.is_resident());
    resident.map(|member| member.bytes()).sum()
}

/// Returns the bytes that the largest batch is planned to need beside weights.
fn workspace(members: &Members) -> u64 {
    let needed = members.values().map(|member| member.workspace);
    needed.max().unwrap_or_default()
}

/// The reason why weights are not copied.
#[derive(Debug, thiserror::Error)]
enum NoCopy {
    #[error("there is no room for {0} bytes")]
    NoRoom(u64),
    #[error(transparent)]
    Failed(#[from] ExecutionError),
    #[error(transparent)]
    NotLoaded(#[from] StartError),
}

impl Residency {
    /// Creates the memory of a process without programs, which may have this much, and of warm weights, which may have this much. The function is
    /// told if the device fails when weights are copied to it.
    pub(crate) fn new(
        limit: Option<ByteCount>,
        warm_limit: Option<ByteCount>,
        counted: CountedMemory,
        device_failed: impl Fn(DeviceFailed) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let residency = Arc::new(Self {
            limit: limit.map(|limit| limit.as_u64().saturating_sub(counted.margin())),
            warm_limit: warm_limit.map(ByteCount::as_u64),
            counted,
            device_failed: Box::new(device_failed),
            members: Mutex::default(),
            told: AtomicU64::new(0),
            start: now(),
        });
        if residency.limit.is_some() {
            let watched = Arc::clone(&residency);
            thread::spawn(move || watched.watch());
        }
        residency
    }

    /// Adds a program that was loaded. Its weights stay if there is room for them. The function tells gateways where they are, when they come or go without an
    /// order, and returns false if there are none.
    pub(crate) fn enter(
        self: &Arc<Self>,
        replica: ReplicaId,
        program: Arc<StoredProgram>,
        batch_size: u32,
        changed: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<MemberWeights> {
        let planned = program.memory(batch_size).map_or(0, ByteCount::as_u64);
        let member = Arc::new(MemberWeights {
            residency: Arc::clone(self),
            replica,
            workspace: planned.saturating_sub(program.bytes()),
            program,
            in_use: AtomicU32::new(0),
            used: AtomicU64::new(0),
            changed: Box::new(changed),
        });
        let mut members = self.lock();
        members.insert(replica, Arc::clone(&member));
        // Others were used, and this one may never be.
        if !self.fits(&members, 0) {
            member.program.park();
        }
        let gone = self.cool(&members, None);
        drop(members);
        gone.tell();
        member
    }

    /// Removes a program.
    pub(crate) fn leave(&self, replica: ReplicaId) {
        self.lock().remove(&replica);
    }

    /// Has weights leave, those first that were used least recently, until so many bytes are free. Returns false if they do not come free.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let members = self.lock();
        let (room, gone) = self.free(&members, bytes, None);
        drop(members);
        gone.tell();
        room
    }

    /// Has weights leave until so many bytes are free. Returns false if they do not come free, and the programs whose weights left.
    fn free(&self, members: &Members, bytes: u64, except: Option<ReplicaId>) -> (bool, Gone) {
        let mut gone = Gone::default();
        let room = self.park_until(members, bytes, except, &mut gone.members);
        (room, gone.and(self.cool(members, except)))
    }

    fn park_until(
        &self,
        members: &Members,
        bytes: u64,
        except: Option<ReplicaId>,
        gone: &mut Vec<Arc<MemberWeights>>,
    ) -> bool {
        if self.fits(members, bytes) {
            return true;
        }
        // What batches and loads have left free the process keeps otherwise, because that saves time.
        self.counted.release_free();
        if self.fits(members, bytes) {
            return true;
        }
        let mut idle: Vec<&Arc<MemberWeights>> = members
            .values()
            .filter(|member| Some(member.replica) != except && member.is_resident())
            .collect();
        idle.sort_by_key(|member| member.used.load(Relaxed));
        for member in idle {
            if member.program.try_park() {
                gone.push(Arc::clone(member));
                if self.fits(members, bytes) {
                    return true;
                }
            }
        }
        false
    }

    /// Has programs leave memory, those first that were used least recently, until the warm ones have no more than they may. One that comes to the device
    /// next is none of them.
    fn cool(&self, members: &Members, wanted: Option<ReplicaId>) -> Gone {
        let mut gone = Gone::default();
        let Some(limit) = self.warm_limit else {
            return gone;
        };
        let others = { members.values() }.filter(|member| Some(member.replica) != wanted);
        let warm = others.filter(|member| member.is_warm());
        let warm = warm.map(|member| WarmProgram {
            key: member.replica,
            used: member.used.load(Relaxed),
            bytes: member.bytes(),
            is_idle: member.in_use.load(Relaxed) == 0,
        });
        for replica in leaving(warm.collect(), limit) {
            let member = &members[&replica];
            if let Some(program) = member.program.leave() {
                gone.programs.push(program);
                gone.members.push(Arc::clone(member));
            }
        }
        gone
    }

    /// Does that, and tells of it.
    fn cool_now(&self, wanted: Option<ReplicaId>) {
        let members = self.lock();
        if let Some(wanted) = wanted.and_then(|wanted| members.get(&wanted)) {
            // Nor does it leave for what comes before its order.
            wanted.use_now();
        }
        let gone = self.cool(&members, wanted);
        drop(members);
        gone.tell();
    }

    /// Returns true if so many bytes more may be taken.
    fn fits(&self, members: &Members, bytes: u64) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        if self.counted == CountedMemory::Planned {
            return resident_bytes(members) + workspace(members) + bytes <= limit;
        }
        let measured = self.counted.measure(limit);
        measured.is_none_or(|measured| measured + bytes <= limit)
    }

    /// Returns the bytes that the weights of all programs may have together: the limit without what is needed otherwise.
    fn memory(&self, members: &Members) -> u64 {
        let Some(limit) = self.limit else {
            return u64::MAX;
        };
        if self.counted == CountedMemory::Planned {
            return limit.saturating_sub(workspace(members));
        }
        let measured = self.counted.measure(limit).unwrap_or_default();
        let others = measured.saturating_sub(resident_bytes(members));
        limit.saturating_sub(HEADROOM + others)
    }

    /// Looks at the memory of the process from time to time, for it grows with batches, too.
    fn watch(&self) {
        let mut is_over = false;
        let mut trims = Trims::default();
        loop {
            thread::sleep(LOOK_INTERVAL);
            if self.counted == CountedMemory::Process {
                trims.look(self);
            }
            self.tell_memory();
            if self.make_room(0) {
                is_over = false;
            } else if !is_over {
                is_over = true;
                tracing::error!(
                    process.bytes = self.limit.and_then(|limit| self.counted.measure(limit)),
                    limit.bytes = self.limit,
                    "the process has more memory than it may, with no weights left that could leave"
                );
            }
        }
    }

    /// Tells gateways how much memory there is for weights, if that is not what they were told. One member speaks for all.
    fn tell_memory(&self) {
        let members = self.lock();
        let memory = self.memory(&members);
        if memory.abs_diff(self.told.load(Relaxed)) <= WORTH_TELLING {
            return;
        }
        let speakers: Vec<Arc<MemberWeights>> = members.values().cloned().collect();
        drop(members);
        // Until the first with a gateway.
        let _ = speakers.iter().any(|speaker| (speaker.changed)());
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemberWeights {
    fn bytes(&self) -> u64 {
        self.program.bytes()
    }

    fn is_resident(&self) -> bool {
        self.program.is_resident()
    }

    fn is_warm(&self) -> bool {
        !self.program.is_cold() && !self.program.is_resident()
    }

    /// Has the program stay in memory until what is returned is dropped, into which it is loaded first if it is cold.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(crate) fn keep(self: &Arc<Self>) -> Result<InUse, StartError> {
        self.in_use.fetch_add(1, Relaxed);
        let in_use = InUse(Arc::clone(self));
        if self.program.is_cold() {
            self.program.loaded()?;
            self.settle();
        }
        Ok(in_use)
    }

    /// Has the weights of a program that was just loaded stay on the device if there is room for them, for which others leave.
    fn settle(&self) {
        let members = self.residency.lock();
        let (room, mut gone) = self.residency.free(&members, 0, Some(self.replica));
        if !room {
            self.program.park();
            gone = gone.and(self.residency.cool(&members, None));
        }
        drop(members);
        gone.tell();
    }

    /// Returns the report to a gateway of which so many orders were carried out.
    pub(crate) fn report(&self, orders: u32) -> WeightsReport {
        let memory = self.residency.memory(&self.residency.lock());
        self.residency.told.store(memory, Relaxed);
        WeightsReport {
            orders,
            place: if self.program.is_cold() {
                WeightsPlace::Cold
            } else if self.is_resident() {
                WeightsPlace::Resident
            } else {
                WeightsPlace::Warm
            },
            bytes: self.bytes(),
            memory,
            load: self.program.load_time(),
            cold_load: self.program.file_load_time(),
        }
    }

    /// Has the weights be on the device, for which others leave if there is no room. Returns false if they are not.
    pub(crate) fn load(self: &Arc<Self>) -> bool {
        self.use_now();
        let copied = self.keep().map_err(NoCopy::from);
        let copied = copied.and_then(|_in_use| self.copy());
        if let Err(NoCopy::Failed(ExecutionError::DeviceFailed(reason))) = &copied {
            (self.residency.device_failed)(DeviceFailed(reason.clone()));
        }
        if let Err(reason) = &copied {
            tracing::warn!(replica.id = %self.replica, %reason, "the weights are not copied");
        }
        copied.is_ok()
    }

    fn use_now(&self) {
        let since_start = now().saturating_duration_since(self.residency.start);
        let used = u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX);
        self.used.store(used, Relaxed);
    }

    /// Copies the weights of a program in memory to the device.
    fn copy(&self) -> Result<(), NoCopy> {
        if self.is_resident() {
            return Ok(());
        }
        let members = self.residency.lock();
        let bytes = self.bytes();
        let (room, gone) = self.residency.free(&members, bytes, Some(self.replica));
        let copied = if room {
            self.program.restore().map_err(NoCopy::from)
        } else {
            Err(NoCopy::NoRoom(bytes))
        };
        let gone = if copied.is_ok() {
            gone
        } else {
            // It is in memory still.
            gone.and(self.residency.cool(&members, None))
        };
        drop(members);
        gone.tell();
        copied
    }

    /// Has the weights leave the device, once no batch uses them, for those of a wanted program if there is one.
    pub(crate) fn unload(&self, wanted: Option<ReplicaId>) {
        self.program.park();
        self.residency.cool_now(wanted);
    }
}
