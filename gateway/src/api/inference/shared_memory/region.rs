//! A region: a part of a POSIX shared memory object of the gateway's user.
//!
//! It is read and written by `pread` and `pwrite` and never mapped: its owner can make it smaller at any time, which would kill a
//! process that has it mapped. Whoever may create objects can put anything under a name: only regular files of the folder's own file system are
//! opened, without following a link and without waiting for anybody.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use bytes::Bytes;
use packhorse_protocol::{RegisterSystemSharedMemory, SystemSharedMemory};
use rustix::{
    buffer::spare_capacity,
    fs::{Mode, OFlags, openat},
    io::Errno,
    process::geteuid,
};
use std::os::unix::fs::MetadataExt as _;

use super::error::SharedMemoryError;

/// The most bytes of an object's name, that of a file.
const KEY_BYTES: usize = 255;

/// The folder of the objects, as `shm_open` of the C library has it.
const FOLDER: &str = "/dev/shm";

/// A registered region.
#[derive(Debug)]
pub(super) struct Region {
    description: SystemSharedMemory,
    file: File,
}

impl Region {
    /// Opens a region. This may wait for the file system, but for no other process.
    ///
    /// # Errors
    /// There is no such object, it is no regular file of the folder's own file system, it is another user's, somebody leases it, or it ends before the
    /// region does.
    pub(super) fn open(
        name: &str,
        registration: RegisterSystemSharedMemory,
    ) -> Result<Self, SharedMemoryError> {
        let RegisterSystemSharedMemory {
            key,
            offset,
            byte_size,
        } = registration;
        let refused = |problem: String| SharedMemoryError::Object {
            key: key.chars().take(64).collect(),
            problem,
        };
        let object = key.strip_prefix('/').filter(|name| {
            key.len() <= KEY_BYTES && !name.contains(['/', '\0']) && !["", ".", ".."].contains(name)
        });
        let Some(object) = object else {
            return Err(refused(format!(
                "expected a slash and a name without slashes, of at most {KEY_BYTES} bytes"
            )));
        };
        let failed = |e: io::Error| refused(e.to_string());
        let folder = File::open(FOLDER).map_err(failed)?;
        let flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let descriptor = openat(&folder, object, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP => refused("it is a symbolic link".to_owned()),
            Errno::WOULDBLOCK => refused("another process has a lease on it".to_owned()),
            other => failed(other.into()),
        })?;
        let file = File::from(descriptor);
        let metadata = file.metadata().map_err(failed)?;
        let folder = folder.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.dev() != folder.dev() {
            return Err(refused("it is no shared memory object".to_owned()));
        }
        if metadata.uid() != geteuid().as_raw() {
            return Err(refused("it belongs to another user".to_owned()));
        }
        let is_within = offset
            .checked_add(byte_size)
            .is_some_and(|end| end <= metadata.len());
        if !is_within {
            return Err(refused(format!(
                "it has {} bytes, and the region would have {byte_size} from byte {offset} on",
                metadata.len()
            )));
        }
        Ok(Self {
            description: SystemSharedMemory {
                name: name.to_owned(),
                key,
                offset,
                byte_size,
            },
            file,
        })
    }

    /// Returns the region as clients see it.
    pub(super) fn description(&self) -> &SystemSharedMemory {
        &self.description
    }

    /// Returns the place in the object of a range of the region.
    ///
    /// # Errors
    /// The region ends before the range.
    pub(super) fn place(&self, offset: u64, bytes: u64) -> Result<u64, String> {
        let size = self.description.byte_size;
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(self.description.offset + offset),
            _ => Err(format!(
                "it has {size} bytes, and {bytes} from byte {offset} on are asked for"
            )),
        }
    }

    /// Returns a copy of a range.
    ///
    /// # Errors
    /// The region, or by now its object, ends before the range.
    pub(super) fn read(&self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        let mut place = self.place(offset, bytes)?;
        let length = usize::try_from(bytes).map_err(|e| e.to_string())?;
        let mut copy = Vec::with_capacity(length);
        while copy.len() < length {
            let read = rustix::io::pread(&self.file, spare_capacity(&mut copy), place)
                .map_err(|e| io::Error::from(e).to_string())?;
            if read == 0 {
                return Err("its object was made smaller".to_owned());
            }
            place += read as u64;
        }
        // An allocation may be larger than what was asked for.
        copy.truncate(length);
        Ok(copy.into())
    }

    /// Writes to the region, from a byte of it on.
    ///
    /// # Errors
    /// The region ends before, or writing fails.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        let place = self.place(offset, data.len() as u64)?;
        self.file
            .write_all_at(data, place)
            .map_err(|e| e.to_string())
    }
}
