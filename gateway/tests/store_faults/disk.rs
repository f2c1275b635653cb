//! A disk in memory that knows which of its bytes are durable, and that fails where a test wants it to.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus as Random};

/// The number of bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// A disk with its files.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    files: BTreeMap<String, File>,
    /// The durable bytes of files whose removal is not durable.
    removed: BTreeMap<String, Vec<u8>>,
    /// The number of calls so far that change something.
    changes: usize,
    /// The number of calls so far that read something.
    reads: usize,
    fault: Option<Fault>,
    /// True once the power is lost: no call succeeds any more.
    is_off: bool,
    random: Random,
}

/// A file.
#[derive(Clone, Debug, Default)]
struct File {
    /// The bytes that programs read.
    bytes: Vec<u8>,
    /// The bytes that survive a loss of power, with none of `pending`.
    durable: Vec<u8>,
    /// The changes since the last sync, in their order.
    pending: Vec<Pending>,
    /// True if the file's name survives a loss of power.
    has_durable_name: bool,
}

/// A change of a file that is not durable.
#[derive(Clone, Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// A fault, and when it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// The number of the call that is the first to fail, from 0: of those that read for [`FaultKind::Unreadable`], otherwise of those
    /// that change something.
    pub(crate) at: usize,
    /// True if all later calls fail as well, until the disk is mended.
    pub(crate) lasts: bool,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// There is no room: writes store a part, and what is not durable yet may never be.
    Full,
    /// Nothing can be written: writes store nothing.
    Unwritable,
    /// A write stores a part of its bytes and fails.
    Torn,
    /// Nothing can be read.
    Unreadable,
    /// The power is lost during the call.
    PowerLoss,
}

/// The reason why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskError {
    Full,
    Failed,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            removed: BTreeMap::new(),
            changes: 0,
            reads: 0,
            fault: None,
            is_off: false,
            random: Random::seed_from_u64(seed),
        }
    }

    /// Plants a fault, and counts calls from here.
    pub(crate) fn plant(&mut self, fault: Fault) {
        (self.changes, self.reads) = (0, 0);
        self.fault = Some(fault);
    }

    /// Mends the disk.
    pub(crate) fn mend(&mut self) {
        self.fault = None;
    }

    /// Returns the numbers of calls since the fault was planted that change something, and that read.
    pub(crate) fn calls(&self) -> (usize, usize) {
        (self.changes, self.reads)
    }

    /// Returns the disk as it is after the process was killed: all that it wrote is there.
    pub(crate) fn after_kill(&self) -> Self {
        Self {
            fault: None,
            is_off: false,
            ..self.clone()
        }
    }

    /// Returns the disk as it may be after a loss of power. What was not synced is there in parts: all of it, none, a beginning, or any
    /// sectors.
    pub(crate) fn after_power_loss(&self, seed: u64) -> Self {
        let mut random = Random::seed_from_u64(seed);
        let flavour = random.random_range(0..4);
        let mut files = BTreeMap::new();
        for (name, bytes) in &self.removed {
            if random.random() {
                files.insert(name.clone(), File::durable(bytes.clone()));
            }
        }
        for (name, file) in &self.files {
            if !file.has_durable_name && (flavour == 1 || random.random()) {
                continue;
            }
            let mut bytes = file.durable.clone();
            let kept = match flavour {
                0 => file.pending.len(),
                1 => 0,
                _ => random.random_range(0..=file.pending.len()),
            };
            for (at, change) in file.pending.iter().enumerate() {
                match flavour {
                    3 => change.apply_some_sectors(&mut bytes, &mut random),
                    2 if at == kept => change.apply_beginning(&mut bytes, &mut random),
                    _ if at < kept => change.apply(&mut bytes),
                    _ => {}
                }
            }
            files.insert(name.clone(), File::durable(bytes));
        }
        Self {
            files,
            ..Self::new(seed)
        }
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    pub(crate) fn create(&mut self, name: &str) -> Result<(), DiskError> {
        if self.files.contains_key(name) {
            return Ok(());
        }
        self.change()?;
        self.files.insert(name.to_owned(), File::default());
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str, durably: bool) -> Result<(), DiskError> {
        match self.change() {
            Ok(()) | Err(DiskError::Full) => {}
            Err(error) => return Err(error),
        }
        if let Some(file) = self.files.remove(name)
            && file.has_durable_name
        {
            self.removed.insert(name.to_owned(), file.durable);
        }
        if durably {
            self.removed.clear();
        }
        Ok(())
    }

    pub(crate) fn length(&self, name: &str) -> Result<usize, DiskError> {
        let file = self.files.get(name).ok_or(DiskError::Failed)?;
        Ok(file.bytes.len())
    }

    /// Reads bytes, and returns how many there are. The rest is zero.
    pub(crate) fn read(
        &mut self,
        name: &str,
        at: usize,
        into: &mut [u8],
    ) -> Result<usize, DiskError> {
        let call = self.reads;
        self.reads += 1;
        let fault = self.fault.filter(|f| f.kind == FaultKind::Unreadable);
        if self.is_off || fault.is_some_and(|fault| fault.hits(call)) {
            return Err(DiskError::Failed);
        }
        let file = self.files.get(name).ok_or(DiskError::Failed)?;
        let found = file.bytes.get(at..).unwrap_or_default();
        let count = found.len().min(into.len());
        into[..count].copy_from_slice(&found[..count]);
        into[count..].fill(0);
        Ok(count)
    }

    pub(crate) fn write(&mut self, name: &str, at: usize, bytes: &[u8]) -> Result<(), DiskError> {
        let call = self.change();
        let kind = self.fault.map(|fault| fault.kind);
        let stored = match (call, kind) {
            (Ok(()), _) => bytes.len(),
            (Err(_), Some(FaultKind::Full | FaultKind::Torn | FaultKind::PowerLoss)) => {
                self.random.random_range(0..bytes.len().max(1))
            }
            (Err(_), _) => 0,
        };
        if stored > 0 {
            let file = self.files.get_mut(name).ok_or(DiskError::Failed)?;
            file.change(Pending::Write(at, bytes[..stored].to_vec()));
        }
        call
    }

    pub(crate) fn truncate(&mut self, name: &str, length: usize) -> Result<(), DiskError> {
        match self.change() {
            // It takes no room.
            Ok(()) | Err(DiskError::Full) => {}
            Err(error) => return Err(error),
        }
        let file = self.files.get_mut(name).ok_or(DiskError::Failed)?;
        file.change(Pending::Truncate(length));
        Ok(())
    }

    /// Makes a file durable. If that fails, the kernel forgets which bytes it still has to write: each is durable or never will be.
    pub(crate) fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        let call = self.change();
        let is_off = self.is_off;
        let file = self.files.get_mut(name).ok_or(DiskError::Failed)?;
        if is_off {
            return call;
        }
        if call.is_err() {
            for change in std::mem::take(&mut file.pending) {
                change.apply_some_sectors(&mut file.durable, &mut self.random);
            }
            return call;
        }
        for change in std::mem::take(&mut file.pending) {
            change.apply(&mut file.durable);
        }
        if !file.has_durable_name {
            // SQLite also syncs the folder after the first sync of a log.
            for file in self.files.values_mut() {
                file.has_durable_name = true;
            }
            self.removed.clear();
        }
        Ok(())
    }

    /// Makes room for memory that processes share, which is a file, too.
    pub(crate) fn extend_shared_memory(&mut self) -> Result<(), DiskError> {
        self.change()
    }

    /// Counts a call that changes something, and fails if it is to fail.
    fn change(&mut self) -> Result<(), DiskError> {
        let call = self.changes;
        self.changes += 1;
        if self.is_off {
            return Err(DiskError::Failed);
        }
        let Some(fault) = self.fault.filter(|fault| fault.hits(call)) else {
            return Ok(());
        };
        match fault.kind {
            FaultKind::Full => Err(DiskError::Full),
            FaultKind::Unwritable | FaultKind::Torn => Err(DiskError::Failed),
            FaultKind::Unreadable => Ok(()),
            FaultKind::PowerLoss => {
                self.is_off = true;
                Err(DiskError::Failed)
            }
        }
    }
}

impl File {
    fn durable(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            bytes,
            pending: Vec::new(),
            has_durable_name: true,
        }
    }

    fn change(&mut self, change: Pending) {
        change.apply(&mut self.bytes);
        self.pending.push(change);
    }
}

impl Pending {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write(at, bytes) => write(to, *at, bytes),
            Self::Truncate(length) => to.truncate(*length),
        }
    }

    fn apply_beginning(&self, to: &mut Vec<u8>, random: &mut Random) {
        if let Self::Write(at, bytes) = self {
            write(to, *at, &bytes[..random.random_range(0..=bytes.len())]);
        }
    }

    fn apply_some_sectors(&self, to: &mut Vec<u8>, random: &mut Random) {
        match self {
            Self::Write(at, bytes) => {
                for part in sectors(*at, bytes.len()) {
                    if random.random() {
                        write(to, at + part.start, &bytes[part]);
                    }
                }
            }
            Self::Truncate(length) => {
                if random.random() {
                    to.truncate(*length);
                }
            }
        }
    }
}

/// Returns the parts of a write that lie in one sector each.
fn sectors(at: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let first = SECTOR - at % SECTOR;
    let bounds = std::iter::once(0).chain((first..length).step_by(SECTOR));
    bounds.map(move |start| {
        let end = if start == 0 { first } else { start + SECTOR };
        start..end.min(length)
    })
}

fn write(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[at..end].copy_from_slice(bytes);
}

impl Fault {
    fn hits(&self, call: usize) -> bool {
        call == self.at || (self.lasts && call > self.at)
    }
}

/// The locks of a file, and the memory that its users share. Both end with the processes that have them.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// The level of lock that each user of the file has, as SQLite numbers them.
    levels: BTreeMap<u64, i32>,
    /// The pieces of shared memory.
    pub(crate) shared_memory: Vec<Box<[u64]>>,
    /// The users of the shared memory.
    users: BTreeSet<u64>,
    shared: [BTreeSet<u64>; Self::SLOTS],
    exclusive: [Option<u64>; Self::SLOTS],
}

impl Locks {
    /// The number of locks of the shared memory.
    pub(crate) const SLOTS: usize = 8;
    const SHARED: i32 = 1;
    pub(crate) const RESERVED: i32 = 2;
    const PENDING: i32 = 3;
    const EXCLUSIVE: i32 = 4;

    /// Raises a user's lock. Returns false if those of others do not allow it.
    pub(crate) fn raise(&mut self, user: u64, to: i32) -> bool {
        let others = self.levels.iter().filter(|(other, _)| **other != user);
        let highest = others.map(|(_, level)| *level).max().unwrap_or(0);
        let own = self.levels.get(&user).copied().unwrap_or(0);
        if own >= to {
            return true;
        }
        let is_free = match to {
            Self::SHARED => highest < Self::PENDING,
            Self::EXCLUSIVE => {
                if highest < Self::RESERVED {
                    // Nobody else begins to read from now on.
                    self.levels.insert(user, Self::PENDING);
                }
                highest == 0
            }
            _ => highest < Self::RESERVED,
        };
        if is_free {
            self.levels.insert(user, to);
        }
        is_free
    }

    pub(crate) fn lower(&mut self, user: u64, to: i32) {
        if to == 0 {
            self.levels.remove(&user);
        } else if let Some(level) = self.levels.get_mut(&user) {
            *level = to.min(*level);
        }
    }

    /// Returns true if anybody has reserved the file for writing.
    pub(crate) fn is_reserved(&self) -> bool {
        self.levels.values().any(|level| *level >= Self::RESERVED)
    }

    /// Takes locks of the shared memory. Returns false if others have them.
    pub(crate) fn lock_slots(&mut self, user: u64, slots: Range<usize>, exclusively: bool) -> bool {
        self.users.insert(user);
        let is_free = slots.clone().all(|slot| {
            let no_writer = self.exclusive[slot].is_none_or(|owner| owner == user);
            no_writer && (!exclusively || self.shared[slot].iter().all(|other| *other == user))
        });
        if is_free {
            for slot in slots {
                if exclusively {
                    self.exclusive[slot] = Some(user);
                } else {
                    self.shared[slot].insert(user);
                }
            }
        }
        is_free
    }

    pub(crate) fn unlock_slots(&mut self, user: u64, slots: Range<usize>, exclusively: bool) {
        for slot in slots {
            if exclusively {
                self.exclusive[slot] = None;
            } else {
                self.shared[slot].remove(&user);
            }
        }
    }

    pub(crate) fn use_shared_memory(&mut self, user: u64) {
        self.users.insert(user);
    }

    /// Ends a user's use of the shared memory, which goes with the last one.
    pub(crate) fn leave_shared_memory(&mut self, user: u64) {
        self.unlock_slots(user, 0..Self::SLOTS, false);
        for owner in &mut self.exclusive {
            *owner = owner.filter(|owner| *owner != user);
        }
        self.users.remove(&user);
        if self.users.is_empty() {
            self.shared_memory.clear();
        }
    }
}
