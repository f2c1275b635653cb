//! The memory that the gateway shares with the workers of a model version on its host: the tensors of its binary requests.
//!
//! Tensors are received into it before the replica that will compute them is known: all links of the version share one arena, and each worker
//! maps it. Another version's workers cannot read it. While no worker of this host serves the version there is none, and bodies are in
//! ordinary memory; so are those for which it has no room.
//!
//! The pages of an arena are kept, because new ones cost more than to use them. All arenas together keep at most a part of the budget of all
//! requests, and those pages that no request uses count as used in it. A page counts from its first byte on: what a client announces and does not
//! send takes nothing but the promise that there is room for it, as long as its request lasts.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use packhorse_cluster::ModelId;
use packhorse_mapped::{Arena, ArenaBytes};
use packhorse_wire::MAX_PAYLOAD;

use crate::memory::MemoryBudget;

/// The part of the memory budget that arenas may keep.
const KEPT_PART: u64 = 4;
/// The fewest bytes for which there is an arena.
const MIN_SIZE: u64 = 1 << 20;
/// The bytes of an arena that are counted together, four pages.
const CHUNK: usize = 16 << 10;

/// The memory for inputs of all model versions.
#[derive(Clone, Debug)]
pub(crate) struct InputMemories {
    kept: Arc<Kept>,
    by_model: Arc<Mutex<BTreeMap<ModelId, Weak<Mutex<Attached>>>>>,
}

/// The memory for inputs of one model version. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct InputMemory {
    kept: Arc<Kept>,
    attached: Arc<Mutex<Attached>>,
}

/// The arena of the links that there are.
#[derive(Debug, Default)]
struct Attached {
    links: usize,
    arena: Option<Arc<CountedArena>>,
}

/// The pages that arenas keep.
#[derive(Debug)]
struct Kept {
    budget: MemoryBudget,
    limit: u64,
    /// The chunks of all arenas that have ever been written to, and those that are promised to bodies, in bytes.
    reserved: Mutex<u64>,
}

/// An arena whose pages count until it is dropped.
#[derive(Debug)]
struct CountedArena {
    arena: Arena,
    /// The chunks that have ever been written to.
    written: Box<[AtomicBool]>,
    kept: Arc<Kept>,
}

/// A link's use of a model version's memory.
#[derive(Debug)]
pub(crate) struct LinkedInputs {
    memory: InputMemory,
    arena: Arc<CountedArena>,
}

/// Memory for the tensors of a body, or for an input that was not received into it.
#[derive(Debug)]
pub(crate) struct InputBytes {
    bytes: ArenaBytes,
    /// The bytes that were written, which the request counts.
    filled: u64,
    /// The chunks that are promised and not written to yet, in bytes.
    promised: u64,
    arena: Arc<CountedArena>,
}

impl InputMemories {
    /// Creates the memory of a gateway with this budget.
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        let limit = (budget.limit() / KEPT_PART).min(MAX_PAYLOAD);
        Self {
            kept: Arc::new(Kept {
                budget,
                limit,
                reserved: Mutex::default(),
            }),
            by_model: Arc::default(),
        }
    }

    /// Returns the memory of a model version.
    pub(crate) fn of(&self, model: &ModelId) -> InputMemory {
        let mut by_model = lock(&self.by_model);
        let known = by_model.get(model).and_then(Weak::upgrade);
        let attached = known.unwrap_or_else(|| {
            by_model.retain(|_, known| known.strong_count() > 0);
            let attached = Arc::default();
            by_model.insert(model.clone(), Arc::downgrade(&attached));
            attached
        });
        InputMemory {
            kept: Arc::clone(&self.kept),
            attached,
        }
    }
}

impl InputMemory {
    /// Adds a link to a worker of this host.
    ///
    /// # Errors
    /// There is no memory to share.
    pub(crate) fn link(&self) -> io::Result<LinkedInputs> {
        if self.kept.limit < MIN_SIZE {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut attached = lock(&self.attached);
        let arena = match &attached.arena {
            Some(arena) => Arc::clone(arena),
            None => Arc::new(CountedArena::new(&self.kept)?),
        };
        attached.arena = Some(Arc::clone(&arena));
        attached.links += 1;
        let memory = self.clone();
        Ok(LinkedInputs { memory, arena })
    }

    /// Returns memory for tensors of this length; `None` if there is no link, or no room.
    pub(crate) fn take(&self, length: u64) -> Option<InputBytes> {
        let arena = lock(&self.attached).arena.clone()?;
        arena.take(usize::try_from(length).ok()?)
    }
}

impl CountedArena {
    fn new(kept: &Arc<Kept>) -> io::Result<Self> {
        let size = kept.limit as usize;
        let chunks = size.div_ceil(CHUNK);
        Ok(Self {
            arena: Arena::new(size)?,
            written: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            kept: Arc::clone(kept),
        })
    }

    fn take(self: Arc<Self>, length: usize) -> Option<InputBytes> {
        let bytes = self.arena.take(length)?;
        let start = bytes.offset() as usize;
        let chunks = chunks(start..start + bytes.len());
        let new = self.written[chunks].iter();
        let new = new.filter(|is_written| !is_written.load(Relaxed)).count();
        let promised = (new * CHUNK) as u64;
        let mut reserved = lock(&self.kept.reserved);
        if *reserved + promised > self.kept.limit {
            return None;
        }
        *reserved += promised;
        drop(reserved);
        Some(InputBytes {
            bytes,
            filled: 0,
            promised,
            arena: self,
        })
    }
}

/// Returns the chunks in which bytes lie.
fn chunks(bytes: Range<usize>) -> Range<usize> {
    bytes.start / CHUNK..bytes.end.div_ceil(CHUNK)
}

impl Drop for CountedArena {
    fn drop(&mut self) {
        let written = self.written.iter();
        let written = written
            .filter(|is_written| is_written.load(Relaxed))
            .count();
        let bytes = (written * CHUNK) as u64;
        *lock(&self.kept.reserved) -= bytes;
        self.kept.budget.use_kept(bytes);
    }
}

impl LinkedInputs {
    /// Returns the memory, which the worker maps.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena.arena
    }

    /// Returns memory for an input that is elsewhere; `None` if there is no room.
    pub(crate) fn take(&self, length: usize) -> Option<InputBytes> {
        Arc::clone(&self.arena).take(length)
    }
}

impl Drop for LinkedInputs {
    fn drop(&mut self) {
        let mut attached = lock(&self.memory.attached);
        attached.links -= 1;
        if attached.links == 0 {
            attached.arena = None;
        }
    }
}

impl InputBytes {
    /// Writes the next bytes, after those that were written before.
    ///
    /// # Panics
    /// If there is no room for them.
    pub(crate) fn push(&mut self, data: &[u8]) {
        let begin = self.filled as usize;
        let end = begin + data.len();
        self.bytes[begin..end].copy_from_slice(data);
        let start = self.bytes.offset() as usize;
        let chunks = chunks(start + begin..start + end);
        let new = self.arena.written[chunks].iter();
        let new = new.filter(|is_written| !is_written.swap(true, Relaxed));
        let new = (new.count() * CHUNK) as u64;
        // Of a chunk in which two bodies lie, either may be the first.
        self.promised -= new;
        let budget = &self.arena.kept.budget;
        budget.keep(new);
        budget.use_kept(data.len() as u64);
        self.filled = end as u64;
    }
}

impl AsRef<[u8]> for InputBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for InputBytes {
    fn drop(&mut self) {
        self.arena.kept.budget.keep(self.filled);
        *lock(&self.arena.kept.reserved) -= self.promised;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 8 << 20;

    fn model(name: &str) -> ModelId {
        name.parse().unwrap()
    }

    #[test]
    fn there_is_memory_only_while_a_link_shares_it() {
        let memories = InputMemories::new(MemoryBudget::new(LIMIT));
        let memory = memories.of(&model("m:1"));
        assert!(memory.take(100).is_none());
        let one = memory.link().unwrap();
        let other = memories.of(&model("m:1")).link().unwrap();
        let body = memory.take(100).unwrap();
        for link in [&one, &other] {
            assert_eq!(link.arena().offset_of(body.as_ref()), Some(0));
        }
        let another = memories.of(&model("m:2")).link().unwrap();
        assert_eq!(another.arena().offset_of(body.as_ref()), None);
        drop(one);
        assert!(memory.take(100).is_some());
        drop(other);
        assert!(memory.take(100).is_none());
        let fresh = memory.link().unwrap();
        assert_eq!(fresh.arena().offset_of(body.as_ref()), None);
    }

    /// Takes memory and fills it.
    fn filled(memory: &InputMemory, bytes: u64) -> Option<InputBytes> {
        let mut taken = memory.take(bytes)?;
        taken.push(&vec![7; bytes as usize]);
        Some(taken)
    }

    #[test]
    fn kept_pages_are_a_quarter_of_the_budget_at_most_and_count_in_it() {
        let budget = MemoryBudget::new(LIMIT);
        let memories = InputMemories::new(budget.clone());
        let [one, other] = ["a:1", "b:1"].map(|name| memories.of(&model(name)));
        let links = [one.link().unwrap(), other.link().unwrap()];
        let first = filled(&one, LIMIT / 8).unwrap();
        let second = filled(&other, LIMIT / 8).unwrap();
        assert!(one.take(1).is_none(), "both together have the quarter");
        let mut request = budget.model().reservation();
        request.force(LIMIT / 4);
        let fits = |bytes| budget.model().reservation().grow(bytes).is_ok();
        assert!(fits(LIMIT / 4), "the pages are the request's");
        assert_eq!(budget.kept(), 0);
        drop((first, second));
        assert_eq!(budget.kept(), LIMIT / 4);
        assert!(one.take(LIMIT / 8).is_some(), "its own pages again");
        assert!(other.take(LIMIT / 4).is_none(), "the others are kept");
        request.shrink(LIMIT / 4);
        request.force(LIMIT * 3 / 4);
        assert!(!fits(1));
        drop(links);
        assert!(fits(LIMIT / 8));
        assert_eq!(budget.kept(), 0);
    }

    #[test]
    fn what_is_announced_and_never_comes_keeps_nothing() {
        let budget = MemoryBudget::new(LIMIT);
        let memories = InputMemories::new(budget.clone());
        let [one, other] = ["a:1", "b:1"].map(|name| memories.of(&model(name)));
        let _links = [one.link().unwrap(), other.link().unwrap()];
        let mut begun = one.take(LIMIT / 4).unwrap();
        assert!(
            other.take(1).is_none(),
            "there is room for all that is announced"
        );
        assert_eq!(budget.kept(), 0);
        begun.push(&[7; 10]);
        assert_eq!(budget.kept(), CHUNK as u64 - 10);
        drop(begun);
        assert_eq!(budget.kept(), CHUNK as u64);
        // The neighbour has the rest, and the model its chunk.
        let neighbour = filled(&other, LIMIT / 4 - CHUNK as u64).unwrap();
        assert!(one.take(CHUNK as u64).is_some() && one.take(CHUNK as u64 + 1).is_none());
        drop(neighbour);
        assert_eq!(budget.kept(), LIMIT / 4);
    }

    #[test]
    fn bodies_in_one_chunk_count_it_once() {
        let budget = MemoryBudget::new(LIMIT);
        let memories = InputMemories::new(budget.clone());
        let memory = memories.of(&model("a:1"));
        let link = memory.link().unwrap();
        let bodies = [(); 3].map(|()| filled(&memory, 64).unwrap());
        assert_eq!(budget.kept(), CHUNK as u64 - 3 * 64);
        drop(bodies);
        assert_eq!(budget.kept(), CHUNK as u64);
        drop((memory, link));
        assert_eq!(budget.kept(), 0);
        assert_eq!(*lock(&memories.kept.reserved), 0);
    }
}
