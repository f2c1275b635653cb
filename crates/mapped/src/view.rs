//! The sender's memory, as its receiver sees it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    ptr::{self, NonNull},
};

use bytes::BytesMut;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::mapping::Mapping;

/// A mapping of another process's memory, for reading. The other process may write to it at any time, so that its bytes are only copied,
/// or read by foreign code at their address, and never borrowed.
#[derive(Debug)]
pub struct View(Mapping);

/// The error of a range that is not within the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl View {
    /// Maps a file of which its sender says that it has this size.
    ///
    /// # Errors
    /// It has another size, more than `limit` bytes, or could shrink.
    pub fn open(file: OwnedFd, size: u64, limit: u64) -> io::Result<Self> {
        let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
        // Fails for what is no memory file.
        let seals = fcntl(file.as_fd(), FcntlArg::F_GET_SEALS)?;
        let seals = SealFlag::from_bits_truncate(seals);
        if !seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW) {
            return Err(invalid("the peer's memory is not sealed"));
        }
        let file = File::from(file);
        if size > limit || file.metadata()?.len() != size {
            return Err(invalid("the peer's memory has another size"));
        }
        Mapping::new(&file, size as usize, false).map(Self)
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Copies as many bytes as `to` has, from `offset` on.
    ///
    /// # Errors
    /// They are not all within the memory.
    pub fn copy_to(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.address(offset, to.len())?.as_ptr();
        // SAFETY: the range is within the mapping, whose file cannot shrink, and `to` is elsewhere: it is borrowed from this process. If
        // the peer breaks the protocol and writes meanwhile, the copy has undefined bytes, which are bytes all the same.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Appends a range.
    ///
    /// # Errors
    /// It is not within the memory.
    pub fn append_to(&self, offset: u64, length: u64, to: &mut BytesMut) -> Result<(), OutOfRange> {
        let length = usize::try_from(length).map_err(|_| OutOfRange)?;
        let from = self.address(offset, length)?.as_ptr();
        to.reserve(length);
        let end = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: as in `copy_to`; `to` has room for the range, and has its bytes afterwards.
        unsafe {
            ptr::copy_nonoverlapping(from, end, length);
            to.set_len(to.len() + length);
        }
        Ok(())
    }

    /// Returns the address of a range, which is mapped as long as the view lives. A write to it ends the process.
    ///
    /// # Errors
    /// It is not within the memory.
    pub fn address(&self, offset: u64, length: usize) -> Result<NonNull<u8>, OutOfRange> {
        let start = usize::try_from(offset).map_err(|_| OutOfRange)?;
        let end = start.checked_add(length).ok_or(OutOfRange)?;
        if end > self.0.size() {
            return Err(OutOfRange);
        }
        Ok(self.0.at(start))
    }
}

#[cfg(test)]
mod tests {
    use nix::{
        sys::memfd::{MFdFlags, memfd_create},
        unistd::ftruncate,
    };

    use super::*;
    use crate::Arena;

    const SIZE: u64 = 1 << 16;

    fn view_of(arena: &Arena) -> io::Result<View> {
        View::open(arena.as_fd().try_clone_to_owned()?, SIZE, SIZE)
    }

    #[test]
    fn what_the_sender_writes_is_read() {
        let arena = Arena::new(SIZE as usize).unwrap();
        let view = view_of(&arena).unwrap();
        let _other = arena.take(100).unwrap();
        let mut sent = arena.take(5).unwrap();
        sent.copy_from_slice(b"hello");
        let mut copy = [0; 4];
        view.copy_to(sent.offset() + 1, &mut copy).unwrap();
        assert_eq!(copy, *b"ello");
        let mut appended = BytesMut::from("say ");
        view.append_to(sent.offset(), 5, &mut appended).unwrap();
        let distance = |start, end| {
            let address = |offset| view.address(offset, 1).unwrap().addr().get();
            address(end) - address(start)
        };
        assert_eq!(distance(0, sent.offset()) as u64, sent.offset());
        assert_eq!(appended, "say hello");
    }

    #[test]
    fn a_range_outside_is_an_error() {
        let view = view_of(&Arena::new(SIZE as usize).unwrap()).unwrap();
        let mut to = [0; 2];
        assert_eq!(view.copy_to(SIZE - 2, &mut to), Ok(()));
        for offset in [SIZE - 1, SIZE, u64::MAX - 1, u64::MAX] {
            assert_eq!(view.copy_to(offset, &mut to), Err(OutOfRange), "{offset}");
            assert_eq!(view.address(offset, 2), Err(OutOfRange), "{offset}");
        }
        let mut to = BytesMut::new();
        for (offset, length) in [(0, SIZE + 1), (1, u64::MAX), (u64::MAX, 1)] {
            let appended = view.append_to(offset, length, &mut to);
            assert_eq!(appended, Err(OutOfRange), "{offset} {length}");
        }
        assert_eq!(view.append_to(SIZE, 0, &mut to), Ok(()));
    }

    #[test]
    fn only_a_sealed_memory_file_of_the_announced_size_is_mapped() {
        let arena = Arena::new(SIZE as usize).unwrap();
        let open =
            |size, limit| View::open(arena.as_fd().try_clone_to_owned().unwrap(), size, limit);
        assert!(open(SIZE, SIZE).is_ok());
        assert!(open(SIZE - 1, SIZE).is_err());
        assert!(open(SIZE, SIZE - 1).is_err());
        let unsealed = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, SIZE.cast_signed()).unwrap();
        assert!(View::open(unsealed, SIZE, SIZE).is_err());
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(View::open(socket.into(), SIZE, SIZE).is_err());
    }
}
