//! The memory of a sender.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};

use crate::{mapping::Mapping, ranges::Ranges};

/// A memory file with ranges in use. Clones share it; the file lasts until the last of them, and of its ranges, is dropped.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

struct Shared {
    file: OwnedFd,
    mapping: Mapping,
    ranges: Mutex<Ranges>,
}

/// A range of an arena, which nobody else writes or is given until this is dropped. Its content is undefined at first.
pub struct ArenaBytes {
    arena: Arc<Shared>,
    start: usize,
    length: usize,
}

impl Arena {
    /// Creates an arena of `size` bytes. Only the pages that are used take memory, and they keep it.
    ///
    /// # Errors
    /// The system has no memory files, or no address space.
    pub fn new(size: usize) -> io::Result<Self> {
        let file = memfd_create(
            "packhorse",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        ftruncate(&file, size.cast_signed() as i64)?;
        let mapping = Mapping::new(&file, size, true)?;
        // After the mapping, which stays writable. No descriptor can be used to write or to map for writing any more.
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_FUTURE_WRITE
            | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(Arc::new(Shared {
            file,
            mapping,
            ranges: Mutex::new(Ranges::new(size)),
        })))
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.0.mapping.size()
    }

    /// Returns the number of bytes at its beginning that have ever been in use, which take memory.
    pub fn touched(&self) -> usize {
        self.0.ranges().touched()
    }

    /// Takes a range; `None` if none of this length is free.
    pub fn take(&self, length: usize) -> Option<ArenaBytes> {
        self.take_within(length, self.size())
    }

    /// Takes a range that ends within the first `limit` bytes; `None` if none of this length is free there.
    pub fn take_within(&self, length: usize, limit: usize) -> Option<ArenaBytes> {
        let start = self.0.ranges().take(length, limit)?;
        Some(ArenaBytes {
            arena: Arc::clone(&self.0),
            start,
            length,
        })
    }

    /// Returns the offset of bytes in this arena; `None` if they are elsewhere.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        self.0.mapping.offset_of(bytes).map(|offset| offset as u64)
    }
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes)", self.size())
    }
}

impl Shared {
    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaBytes {
    /// Returns the offset of its first byte in the arena.
    pub fn offset(&self) -> u64 {
        self.start as u64
    }
}

impl Deref for ArenaBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.arena.mapping.at(self.start);
        // SAFETY: the range is within the mapping, which lives as long as the arena. It was given to this object alone, only this process
        // can write to the file, and every byte pattern is a `u8`; a new page is zero.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.length) }
    }
}

impl DerefMut for ArenaBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.arena.mapping.at(self.start);
        // SAFETY: as above, and this is the only reference. That the receiver reads at the same time is a fault of the protocol, which
        // gives it undefined bytes; this process does not notice.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for ArenaBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ArenaBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaBytes({} at {})", self.length, self.start)
    }
}

impl Drop for ArenaBytes {
    fn drop(&mut self) {
        self.arena.ranges().give_back(self.start, self.length);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _};

    use super::*;

    const SIZE: usize = 1 << 20;

    #[test]
    fn a_range_can_be_taken_again_once_it_is_dropped() {
        let arena = Arena::new(SIZE).unwrap();
        let mut whole = arena.take(SIZE).unwrap();
        whole.fill(7);
        assert!(arena.take(1).is_none());
        drop(whole);
        let part = arena.take(1000).unwrap();
        assert_eq!(part[..], [7; 1000], "the page was kept");
        assert_eq!(arena.touched(), SIZE);
        let other = arena.take_within(1000, 2048).unwrap();
        assert_eq!(other.offset() % 64, 0);
        assert!(arena.take_within(1000, 2048).is_none());
        drop(arena);
        assert_eq!(part[999], 7, "the range outlives the arena's other handles");
    }

    #[test]
    fn bytes_are_found_in_their_arena_and_in_no_other() {
        let [one, other] = [(); 2].map(|()| Arena::new(SIZE).unwrap());
        let first = one.take(100).unwrap();
        let second = one.take(100).unwrap();
        assert_eq!(one.offset_of(&first), Some(0));
        assert_eq!(one.offset_of(&second[5..50]), Some(second.offset() + 5));
        assert_eq!(other.offset_of(&first), None);
        assert_eq!(one.offset_of(b"elsewhere"), None);
    }

    #[test]
    fn who_has_the_descriptor_can_neither_resize_nor_write_the_file() {
        let arena = Arena::new(SIZE).unwrap();
        let mut file = File::from(arena.as_fd().try_clone_to_owned().unwrap());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(2 * SIZE as u64).is_err());
        assert!(file.write_all(b"x").is_err());
        assert!(Mapping::new(&file, SIZE, true).is_err());
        let unseal = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        assert!(fcntl(&file, unseal).is_err());
    }
}
