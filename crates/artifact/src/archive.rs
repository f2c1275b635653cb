//! ZIP archives of strangers: their list of members, and members of a limited size.

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom},
};

use flate2::{Crc, read::DeflateDecoder};

/// The signature of the record at the end of an archive.
const END: &[u8; 4] = b"PK\x05\x06";
/// The signature of the record that says where that of the 64-bit format is.
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";
/// The signature of the record at the end of an archive in the 64-bit format.
const END_64: &[u8; 4] = b"PK\x06\x06";
/// The signature of an entry of the list of members.
const ENTRY: &[u8; 4] = b"PK\x01\x02";
/// The signature before a member's bytes.
const LOCAL: &[u8; 4] = b"PK\x03\x04";
/// The bytes of the record at the end without its comment.
const END_SIZE: usize = 22;
/// The bytes of the locator.
const LOCATOR_SIZE: usize = 20;
/// The bytes of an entry without name, extra fields and comment.
const ENTRY_SIZE: usize = 46;
/// The bytes before a member's bytes without name and extra fields.
const LOCAL_SIZE: usize = 30;
/// The number that stands for one of the 64-bit format.
const IN_64: u32 = u32::MAX;
/// The identifier of the extra field with the numbers of the 64-bit format.
const EXTRA_64: u16 = 1;

/// The members of an archive.
#[derive(Debug)]
pub struct Archive<R> {
    file: R,
    members: BTreeMap<String, Member>,
}

/// The place of a member.
#[derive(Clone, Copy, Debug)]
struct Member {
    method: u16,
    is_encrypted: bool,
    crc: u32,
    compressed: u64,
    size: u64,
    header: u64,
}

/// An archive that cannot be read, or a member of it.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The list of members is not where it should be.
    #[error("the archive ends too early: its download or copy is not whole")]
    Truncated,
    /// The list of members contradicts itself.
    #[error("the archive is broken: {0}")]
    Broken(&'static str),
    /// The list of members is too large.
    #[error("the archive's list of members has {bytes} bytes, over the limit of {}", Archive::<()>::MAX_DIRECTORY)]
    Directory {
        /// Its size in bytes.
        bytes: u64,
    },
    /// There are too many members.
    #[error("the archive has {members} members, over the limit of {}", Archive::<()>::MAX_MEMBERS)]
    Members {
        /// Their number.
        members: u64,
    },
    /// The name of a member leads out of the archive, or is no text.
    #[error("the archive has a member with the name {0:?}, which leads out of it or is no text")]
    Name(String),
    /// Two members have one name.
    #[error("the archive has two members with the name {0:?}")]
    Twice(String),
    /// There is no such member.
    #[error("the archive has no member {0:?}")]
    Missing(String),
    /// A member is too large.
    #[error("the member {name:?} has {bytes} bytes, over the limit of {limit}")]
    TooLarge {
        /// The name of the member.
        name: String,
        /// Its declared size in bytes.
        bytes: u64,
        /// The largest size.
        limit: u64,
    },
    /// A member is compressed or encrypted in a way that PyTorch never uses.
    #[error("the member {0:?} is encrypted, or compressed by something else than deflate")]
    Method(String),
    /// A member has other bytes than its entry says.
    #[error("the member {0:?} has not the size or the checksum that the archive says")]
    Content(String),
}

impl Archive<()> {
    /// The largest list of members, in bytes: ten times that of a model with ten thousand tensors.
    pub const MAX_DIRECTORY: u64 = 32 << 20;
    /// The most members. A tensor of a TorchScript file is one.
    pub const MAX_MEMBERS: u64 = 1 << 18;
}

impl<R: Read + Seek> Archive<R> {
    /// Reads the list of members.
    ///
    /// # Errors
    /// If the file is no whole archive, or its list is over a limit.
    pub fn open(mut file: R) -> Result<Self, ArchiveError> {
        let length = file.seek(SeekFrom::End(0))?;
        let Directory {
            offset,
            bytes,
            count,
        } = find_directory(&mut file, length)?;
        if bytes > Archive::MAX_DIRECTORY {
            return Err(ArchiveError::Directory { bytes });
        }
        if count > Archive::MAX_MEMBERS {
            return Err(ArchiveError::Members { members: count });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(ArchiveError::Truncated);
        }
        file.seek(SeekFrom::Start(offset))?;
        let mut directory = vec![0; bytes as usize];
        file.read_exact(&mut directory)?;
        let mut members = BTreeMap::new();
        let mut rest = &directory[..];
        for _ in 0..count {
            let (name, member) = read_entry(&mut rest)?;
            if member.header > length {
                return Err(ArchiveError::Broken("a member begins beyond the file"));
            }
            if members.insert(name.clone(), member).is_some() {
                return Err(ArchiveError::Twice(name));
            }
        }
        Ok(Self { file, members })
    }

    /// Returns the names of the members, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Returns true if there is a member with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Returns the bytes of a member.
    ///
    /// # Errors
    /// If there is none, it has more bytes than the limit, or is not what the list of members says.
    pub fn read(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        let member = self.member(name)?;
        if member.size > limit {
            return Err(ArchiveError::TooLarge {
                name: name.to_owned(),
                bytes: member.size,
                limit,
            });
        }
        let bytes = self.inflate(name, member, member.size)?;
        let mut crc = Crc::new();
        crc.update(&bytes);
        if bytes.len() as u64 != member.size || crc.sum() != member.crc {
            return Err(ArchiveError::Content(name.to_owned()));
        }
        Ok(bytes)
    }

    /// Returns the first bytes of a member, at most so many, without the check of its checksum.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn read_head(&mut self, name: &str, most: u64) -> Result<Vec<u8>, ArchiveError> {
        let member = self.member(name)?;
        self.inflate(name, member, member.size.min(most))
    }

    fn member(&self, name: &str) -> Result<Member, ArchiveError> {
        let member = self.members.get(name).copied();
        member.ok_or_else(|| ArchiveError::Missing(name.to_owned()))
    }

    /// Compares the bytes of each member that is not compressed, such as weights, with their checksum.
    ///
    /// # Errors
    /// The first member with other bytes.
    pub fn check_stored(&mut self) -> Result<(), ArchiveError> {
        let length = self.file.seek(SeekFrom::End(0))?;
        let stored = self.members.iter().filter(|(_, member)| member.method == 0);
        let stored: Vec<(String, Member)> = stored.map(|(name, m)| (name.clone(), *m)).collect();
        let mut checked: u64 = 0;
        for (name, member) in stored {
            checked = checked.saturating_add(member.compressed);
            if checked > length {
                return Err(ArchiveError::Broken("its members overlap"));
            }
            let mut crc = CrcWriter(Crc::new());
            let copied = self
                .stored(member)
                .and_then(|mut bytes| io::copy(&mut bytes, &mut crc));
            let is_whole = match copied {
                Ok(bytes) => bytes == member.size && crc.0.sum() == member.crc,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
                Err(e) => return Err(e.into()),
            };
            if !is_whole {
                return Err(ArchiveError::Content(name));
            }
        }
        Ok(())
    }

    /// Returns the bytes of a member as they are stored.
    fn stored(&mut self, member: Member) -> io::Result<io::Take<&mut R>> {
        self.file.seek(SeekFrom::Start(member.header))?;
        let mut header = [0; LOCAL_SIZE];
        self.file.read_exact(&mut header)?;
        if !header.starts_with(LOCAL) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let skipped = u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
        let begin = member.header + LOCAL_SIZE as u64 + skipped;
        self.file.seek(SeekFrom::Start(begin))?;
        Ok(self.file.by_ref().take(member.compressed))
    }

    /// Returns this many bytes of a member, and one more if there is one.
    fn inflate(&mut self, name: &str, member: Member, bytes: u64) -> Result<Vec<u8>, ArchiveError> {
        let content = || ArchiveError::Content(name.to_owned());
        let unexpected = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData => content(),
            _ => error.into(),
        };
        if member.is_encrypted || !matches!(member.method, 0 | 8) {
            return Err(ArchiveError::Method(name.to_owned()));
        }
        let stored = self.stored(member).map_err(unexpected)?;
        let mut read = Vec::new();
        let outcome = if member.method == 0 {
            stored.take(bytes + 1).read_to_end(&mut read)
        } else {
            let inflated = DeflateDecoder::new(stored);
            inflated.take(bytes + 1).read_to_end(&mut read)
        };
        outcome.map_err(unexpected)?;
        if read.len() as u64 > bytes && bytes < member.size {
            read.truncate(bytes as usize);
        }
        Ok(read)
    }
}

/// The checksum of what is written.
struct CrcWriter(Crc);

impl io::Write for CrcWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The place of the list of members.
struct Directory {
    offset: u64,
    bytes: u64,
    count: u64,
}

/// Finds the list of members by the record at the end of the file.
fn find_directory(file: &mut (impl Read + Seek), length: u64) -> Result<Directory, ArchiveError> {
    let most = (END_SIZE + LOCATOR_SIZE) as u64 + u64::from(u16::MAX);
    let begin = length.saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut tail = Vec::new();
    file.take(most).read_to_end(&mut tail)?;
    let is_end = |at: &usize| {
        let comment = tail.len() - at - END_SIZE;
        tail[*at..].starts_with(END) && usize::from(u16_at(&tail, at + 20)) == comment
    };
    let places = 0..(tail.len() + 1).saturating_sub(END_SIZE);
    let end = { places.rev() }.find(is_end);
    let end = end.ok_or(ArchiveError::Truncated)?;
    let (count, bytes, offset) = (
        u16_at(&tail, end + 10),
        u32_at(&tail, end + 12),
        u32_at(&tail, end + 16),
    );
    let locator = end.checked_sub(LOCATOR_SIZE);
    if let Some(locator) = locator.filter(|at| tail[*at..].starts_with(LOCATOR_64))
        && (count == u16::MAX || bytes == IN_64 || offset == IN_64)
    {
        let mut record = [0; 56];
        let place = u64_at(&tail, locator + 8);
        if place > length {
            return Err(ArchiveError::Truncated);
        }
        file.seek(SeekFrom::Start(place))?;
        { file.read_exact(&mut record) }.map_err(|_| ArchiveError::Truncated)?;
        if !record.starts_with(END_64) {
            return Err(ArchiveError::Truncated);
        }
        return Ok(Directory {
            offset: u64_at(&record, 48),
            bytes: u64_at(&record, 40),
            count: u64_at(&record, 32),
        });
    }
    Ok(Directory {
        offset: offset.into(),
        bytes: bytes.into(),
        count: count.into(),
    })
}

/// Reads an entry of the list of members.
fn read_entry(rest: &mut &[u8]) -> Result<(String, Member), ArchiveError> {
    let broken = ArchiveError::Broken("its list of members ends within an entry");
    let Some((entry, after)) = rest.split_at_checked(ENTRY_SIZE) else {
        return Err(broken);
    };
    if !entry.starts_with(ENTRY) {
        return Err(ArchiveError::Broken(
            "an entry of its list of members is none",
        ));
    }
    let lengths = [28, 30, 32].map(|at| usize::from(u16_at(entry, at)));
    let Some((name, after)) = after.split_at_checked(lengths[0]) else {
        return Err(broken);
    };
    let Some((extra, after)) = after.split_at_checked(lengths[1]) else {
        return Err(broken);
    };
    let Some((_, after)) = after.split_at_checked(lengths[2]) else {
        return Err(broken);
    };
    *rest = after;
    let shown = || ArchiveError::Name(String::from_utf8_lossy(name).chars().take(128).collect());
    let name = str::from_utf8(name).map_err(|_| shown())?;
    let leads_out = name.starts_with('/')
        || name.split('/').any(|part| part == "..")
        || name.contains(['\\', '\0']);
    if name.is_empty() || leads_out {
        return Err(shown());
    }
    let mut numbers = extra_64(extra);
    let mut number = |at| match u32_at(entry, at) {
        IN_64 => numbers.next().unwrap_or(IN_64.into()),
        number => number.into(),
    };
    let size = number(24);
    let compressed = number(20);
    let member = Member {
        method: u16_at(entry, 10),
        is_encrypted: u16_at(entry, 8) & 1 == 1,
        crc: u32_at(entry, 16),
        compressed,
        size,
        header: number(42),
    };
    Ok((name.to_owned(), member))
}

/// Returns the numbers of the 64-bit format in the extra fields of an entry.
fn extra_64(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut found: &[u8] = &[];
    while let Some((head, rest)) = extra.split_at_checked(4) {
        let length = usize::from(u16_at(head, 2)).min(rest.len());
        let (field, after) = rest.split_at(length);
        if u16_at(head, 0) == EXTRA_64 {
            found = field;
        }
        extra = after;
    }
    found
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::test_archive::archive;

    fn open(bytes: Vec<u8>) -> Result<Archive<Cursor<Vec<u8>>>, ArchiveError> {
        Archive::open(Cursor::new(bytes))
    }

    /// Replaces the first of these bytes by others of the same number, everywhere.
    fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for at in 0..=bytes.len() - from.len() {
            if bytes[at..].starts_with(from) {
                bytes[at..at + to.len()].copy_from_slice(to);
            }
        }
        bytes
    }

    #[test]
    fn a_changed_bit_of_weights_is_found() {
        let weights: Vec<u8> = (0..5000_u32).map(|i| (i * i % 251) as u8).collect();
        let whole = archive(&[("m/a", b"stored"), ("m/data/0", &weights)]);
        open(whole.clone()).unwrap().check_stored().unwrap();
        let at = { whole.windows(64) }.position(|w| w == &weights[100..164]);
        let mut damaged = whole;
        damaged[at.unwrap()] ^= 4;
        let error = open(damaged).unwrap().check_stored().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the member \"m/data/0\" has not the size or the checksum that the archive says"
        );
    }

    #[test]
    fn members_are_read_stored_and_deflated() {
        let sevens = vec![7; 100_000];
        let bytes = archive(&[("m/a", b"stored"), ("m/code/b", &sevens)]);
        assert!(bytes.len() < 1000);
        let mut archive = open(bytes).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["m/a", "m/code/b"]);
        assert_eq!(archive.read("m/a", 6).unwrap(), b"stored");
        assert_eq!(archive.read("m/code/b", 1 << 20).unwrap(), sevens);
        assert_eq!(archive.read_head("m/code/b", 10).unwrap(), [7; 10]);
        assert_eq!(archive.read_head("m/a", 10).unwrap(), b"stored");
    }

    #[test]
    fn a_member_over_the_limit_is_refused_by_what_it_says_and_by_what_it_is() {
        let bomb = archive(&[("m/code/b", &vec![0; 1 << 20])]);
        let error = open(bomb.clone()).unwrap().read("m/code/b", 1000);
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            r#"the member "m/code/b" has 1048576 bytes, over the limit of 1000"#
        );
        // It says that it has ten bytes.
        let lying = replaced(&bomb, &(1_u32 << 20).to_le_bytes(), &10_u32.to_le_bytes());
        let error = open(lying).unwrap().read("m/code/b", 1000).unwrap_err();
        assert!(matches!(error, ArchiveError::Content(_)), "{error}");
    }

    #[test]
    fn what_is_broken_is_refused_with_the_reason() {
        let good = archive(&[("m/a", b"content"), ("m/b", b"other")]);
        let names = |from: &[u8], to: &[u8]| open(replaced(&good, from, to)).unwrap_err();
        assert!(matches!(names(b"m/b", b"../"), ArchiveError::Name(_)));
        assert!(matches!(names(b"m/b", b"/et"), ArchiveError::Name(_)));
        assert!(matches!(names(b"m/b", b"m\\b"), ArchiveError::Name(_)));
        assert!(matches!(names(b"m/b", b"m/\xff"), ArchiveError::Name(_)));
        assert!(matches!(names(b"m/b", b"m/a"), ArchiveError::Twice(_)));
        assert!(matches!(
            names(b"PK\x01\x02", b"PK\x01\x09"),
            ArchiveError::Broken(_)
        ));
        let changed = replaced(&good, b"content", b"Content");
        let error = open(changed).unwrap().read("m/a", 100).unwrap_err();
        assert!(matches!(error, ArchiveError::Content(_)));
        let error = open(good.clone()).unwrap().read("m/c", 100).unwrap_err();
        assert!(matches!(error, ArchiveError::Missing(_)));
        for end in 0..good.len() {
            assert!(open(good[..end].to_vec()).is_err(), "{end}");
        }
    }

    #[test]
    fn a_list_of_members_over_a_limit_is_refused_before_it_is_read() {
        let good = archive(&[("m/a", b"content")]);
        let end = good.len() - END_SIZE;
        let with = |at: usize, number: u32| {
            let mut bytes = good.clone();
            bytes[end + at..end + at + 4].copy_from_slice(&number.to_le_bytes());
            open(bytes).unwrap_err().to_string()
        };
        assert_eq!(
            with(12, 1 << 30),
            "the archive's list of members has 1073741824 bytes, over the limit of 33554432"
        );
        assert!(with(16, 1 << 30).contains("ends too early"));
        let mut many = good[..end].to_vec();
        let (offset, bytes) = (u64::from(u32_at(&good, end + 16)), 49);
        many.extend(END_64);
        many.extend([0; 28]);
        for number in [1 << 20, bytes, offset] {
            many.extend(u64::to_le_bytes(number));
        }
        many.extend(LOCATOR_64);
        many.extend([0; 4]);
        many.extend((end as u64).to_le_bytes());
        many.extend([0; 4]);
        many.extend(&good[end..end + 10]);
        many.extend([0xff; 10]);
        many.extend([0, 0]);
        let error = open(many).unwrap_err().to_string();
        assert_eq!(
            error,
            "the archive has 1048576 members, over the limit of 262144"
        );
    }

    proptest! {
        #[test]
        fn a_changed_archive_is_read_within_its_limits_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = archive(&[("m/a", b"content"), ("m/code/b", &[3; 500])]);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(mut archive) = open(bytes) {
                let names: Vec<String> = archive.names().map(str::to_owned).collect();
                for name in names {
                    if let Ok(read) = archive.read(&name, 600) {
                        prop_assert!(read.len() <= 600);
                    }
                    if let Ok(read) = archive.read_head(&name, 20) {
                        prop_assert!(read.len() <= 20);
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = open([b"PK\x03\x04".to_vec(), bytes.clone(), b"PK\x05\x06".to_vec(), bytes].concat());
        }
    }
}
