//! The programs in a model's file. TorchScript files and packages are both ZIP archives; the names of their members distinguish them.

use std::{
    collections::BTreeSet,
    io::{self, Read, Seek},
};

use zip::{ZipArchive, result::ZipError};

/// The folder of a package that contains a folder for each of its programs.
const PROGRAMS_FOLDER: &str = "/data/aotinductor/";
/// The most bytes of a program's name.
const MAX_NAME: usize = 64;
/// The most programs of a package that are used.
const MAX_PROGRAMS: usize = 64;

/// Returns the names of the programs in a package (`.pt2`) that were compiled ahead of time: its members are
/// `NAME/data/aotinductor/PROGRAM/…`. The set is empty for any other file.
pub(super) fn program_names(file: impl Read + Seek) -> io::Result<BTreeSet<String>> {
    let archive = match ZipArchive::new(file) {
        Ok(archive) => archive,
        Err(ZipError::Io(e)) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(e),
        Err(_) => return Ok(BTreeSet::new()),
    };
    let mut names = BTreeSet::new();
    for name in archive.file_names().filter_map(program_name) {
        if names.len() < MAX_PROGRAMS {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// Returns the program that a member of the archive belongs to.
fn program_name(member: &str) -> Option<&str> {
    let (_, path) = member.split_once(PROGRAMS_FOLDER)?;
    let (name, _) = path.split_once('/')?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (name.len() <= MAX_NAME && name.bytes().all(is_allowed)).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use zip::{CompressionMethod, ZipWriter, write::FileOptions};

    use super::*;

    /// An archive with these members.
    fn archive<'a>(members: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        let options = FileOptions::default().compression_method(CompressionMethod::Stored);
        for member in members {
            writer.start_file(member, options).unwrap();
            writer.write_all(b"content").unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn names(bytes: Vec<u8>) -> Vec<String> {
        let names = program_names(Cursor::new(bytes)).unwrap();
        names.into_iter().collect()
    }

    #[test]
    fn a_package_is_recognised_by_its_members() {
        for (members, programs) in [
            (
                &["m/data/aotinductor/model/x.wrapper.so"][..],
                &["model"][..],
            ),
            (
                &[
                    "m/data/aotinductor/rows-8/a.so",
                    "m/data/aotinductor/rows-1/a.so",
                    "m/data/aotinductor/rows-8/b",
                ],
                &["rows-1", "rows-8"],
            ),
            (&["m/data/aotinductor/../x", "m/data/aotinductor/x"], &[]),
            (&["m/code/__torch__.py"], &[]),
        ] {
            assert_eq!(names(archive(members.iter().copied())), programs);
        }
    }

    #[test]
    fn a_package_may_have_more_members_than_the_first_zip_format_can_count() {
        let other: Vec<String> = (0..=u16::MAX).map(|i| i.to_string()).collect();
        let members = other.iter().map(String::as_str);
        let members = members.chain(["m/data/aotinductor/model/x.so"]);
        assert_eq!(names(archive(members)), ["model"]);
    }

    #[test]
    fn a_file_that_is_no_archive_is_no_package() {
        let whole = archive(["m/data/aotinductor/model/x.wrapper.so"]);
        for length in 0..whole.len() {
            assert!(names(whole[..length].to_vec()).is_empty(), "{length}");
        }
        assert!(names(vec![0x50; 200_000]).is_empty());
    }
}
