//! A region: a part of a POSIX shared memory object of the gateway's user.
//!
//! It is read and written by `pread` and `pwrite` and never mapped: its owner can make it smaller at any time, which would kill a
//! process that has it mapped.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use bytes::Bytes;
use packhorse_protocol::{RegisterSystemSharedMemory, SystemSharedMemory};
use rustix::{
    buffer::spare_capacity,
    fs::Mode,
    process::geteuid,
    shm::{self, OFlags},
};
use std::os::unix::fs::MetadataExt as _;

use super::error::SharedMemoryError;

/// The most bytes of an object's name, that of a file.
const KEY_BYTES: usize = 255;

/// A registered region.
#[derive(Debug)]
pub(super) struct Region {
    description: SystemSharedMemory,
    file: File,
}

impl Region {
    /// Opens a region.
    ///
    /// # Errors
    /// There is no such object, it is another user's, or it ends before the region does.
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
        let is_name = key.len() <= KEY_BYTES
            && key
                .strip_prefix('/')
                .is_some_and(|name| !name.is_empty() && !name.contains(['/', '\0']));
        if !is_name {
            return Err(refused(format!(
                "expected a slash and a name without slashes, of at most {KEY_BYTES} bytes"
            )));
        }
        let descriptor = shm::open(key.as_str(), OFlags::RDWR, Mode::empty())
            .map_err(|e| refused(io::Error::from(e).to_string()))?;
        let file = File::from(descriptor);
        let metadata = file.metadata().map_err(|e| refused(e.to_string()))?;
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
