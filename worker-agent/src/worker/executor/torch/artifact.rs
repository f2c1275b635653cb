//! What kind of program a file holds. Both kinds are ZIP archives; what tells them apart is the names of their members.

use std::{
    collections::BTreeSet,
    io::{self, Read, Seek, SeekFrom},
};

/// The length of an archive's end record, without the comment behind it.
const END_RECORD: usize = 22;
/// The end record with the longest comment and, before it, the locator of a large archive's record.
const TAIL: u64 = 20 + END_RECORD as u64 + 65_535;
/// A directory that is larger belongs to something else.
const MAX_DIRECTORY: u64 = 16 << 20;

/// The longest name of a program in a package.
const MAX_NAME: usize = 64;
/// Programs of a package; what is beyond is none of ours.
const MAX_PROGRAMS: usize = 64;

/// The names of the programs in a package (`.pt2`), which were compiled ahead of time: members are `NAME/data/aotinductor/PROGRAM/…`. None
/// if this is no package; whatever is no archive is none.
pub(super) fn programs(file: &mut (impl Read + Seek)) -> io::Result<BTreeSet<String>> {
    let Some((offset, size)) = directory(file)? else {
        return Ok(BTreeSet::new());
    };
    if size > MAX_DIRECTORY {
        return Ok(BTreeSet::new());
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut directory = Vec::new();
    file.take(size).read_to_end(&mut directory)?;
    let folder = b"/data/aotinductor/";
    let members = directory.windows(folder.len()).enumerate();
    let members = members.filter(|(_, window)| window == folder);
    let name = |(at, _): (usize, &[u8])| {
        let rest = &directory[at + folder.len()..];
        let end = rest
            .iter()
            .take(MAX_NAME + 1)
            .position(|byte| *byte == b'/')?;
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let name = rest[..end].iter().all(allowed).then_some(&rest[..end])?;
        Some(str::from_utf8(name).ok()?.to_owned())
    };
    let mut names = BTreeSet::new();
    for name in members.filter_map(name) {
        names.insert(name);
        if names.len() == MAX_PROGRAMS {
            break;
        }
    }
    Ok(names)
}

/// Where the archive's directory is, and how long.
/// Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3.14 to 4.3.16.
fn directory(file: &mut (impl Read + Seek)) -> io::Result<Option<(u64, u64)>> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.by_ref().take(TAIL).read_to_end(&mut tail)?;
    let Some(end) = tail.windows(4).rposition(|window| window == b"PK\x05\x06") else {
        return Ok(None);
    };
    let (before, record) = tail.split_at(end);
    if record.len() < END_RECORD {
        return Ok(None);
    }
    let (Some(size), Some(offset)) = (number::<4>(record, 12), number::<4>(record, 16)) else {
        return Ok(None);
    };
    let large = u64::from(u32::MAX);
    if size != large && offset != large {
        return Ok(Some((offset, size)));
    }
    let locator = before.len().checked_sub(20).map(|start| &before[start..]);
    let Some(record_at) = locator.and_then(|locator| number::<8>(locator, 8)) else {
        return Ok(None);
    };
    file.seek(SeekFrom::Start(record_at))?;
    let mut record = Vec::new();
    file.take(56).read_to_end(&mut record)?;
    Ok(number::<8>(&record, 48).zip(number::<8>(&record, 40)))
}

/// A little-endian number of `N` bytes, at most 8.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// An archive with nothing but a directory that speaks of one member.
    fn archive(member: &str, large: bool) -> Vec<u8> {
        let mut bytes = b"members".to_vec();
        let (offset, size) = (bytes.len() as u64, member.len() as u64);
        bytes.extend(member.as_bytes());
        let short = |value: u64| if large { u32::MAX } else { value as u32 };
        if large {
            let record = bytes.len() as u64;
            bytes.extend(b"PK\x06\x06");
            bytes.extend([0; 36]);
            bytes.extend(size.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend(b"PK\x06\x07\0\0\0\0");
            bytes.extend(record.to_le_bytes());
            bytes.extend([0; 4]);
        }
        bytes.extend(b"PK\x05\x06");
        bytes.extend([0; 8]);
        bytes.extend(short(size).to_le_bytes());
        bytes.extend(short(offset).to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }

    #[test]
    fn a_package_is_known_by_its_members_however_large_it_is() {
        for large in [false, true] {
            for (member, package) in [
                ("m/data/aotinductor/model/x.wrapper.so", &["model"][..]),
                (
                    "m/data/aotinductor/rows-8/a.so m/data/aotinductor/rows-1/a.so m/data/aotinductor/rows-8/b",
                    &["rows-1", "rows-8"],
                ),
                ("m/data/aotinductor/../x m/data/aotinductor/x", &[]),
                ("m/code/__torch__.py", &[]),
            ] {
                let mut file = Cursor::new(archive(member, large));
                let names: Vec<String> = programs(&mut file).unwrap().into_iter().collect();
                assert_eq!(names, package, "{member} {large}");
            }
        }
    }

    #[test]
    fn no_archive_is_no_package() {
        let whole = archive("m/data/aotinductor/model/x.wrapper.so", true);
        for length in 0..whole.len() {
            let cut = Cursor::new(whole[..length].to_vec());
            assert!(programs(&mut { cut }).unwrap().is_empty(), "{length}");
        }
        let none = programs(&mut Cursor::new(vec![0x50; 200_000])).unwrap();
        assert!(none.is_empty());
    }
}
