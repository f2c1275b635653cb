//! Reads and writes the files that the user names, with a limit on their size.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use nix::fcntl::OFlag;

/// The largest file that is read, in bytes.
const FILE_LIMIT: u64 = 1 << 30;
/// The largest text file that is read, in bytes.
const TEXT_LIMIT: u64 = 256 << 20;

/// Reads a file; the error names it.
pub fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_within(FILE_LIMIT, path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a regular file of this size at most.
pub fn read_regular_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_to_limit(limit, open_regular_file(path)?)
}

/// Opens a regular file. Anything else under its name is refused without waiting for it: a named pipe has to have a writer even to be opened.
pub fn open_regular_file(path: &Path) -> io::Result<fs::File> {
    let file = fs::File::options()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    if !file.metadata()?.is_file() {
        let problem = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(file)
}

/// Reads a text file; the error names it.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    read_text_within_limit(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a text file; the error does not name it.
pub fn read_text_within_limit(path: &Path) -> io::Result<String> {
    let bytes = read_within(TEXT_LIMIT, path)?;
    String::from_utf8(bytes).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is not text: it is not valid UTF-8",
        )
    })
}

fn read_within(limit: u64, path: &Path) -> io::Result<Vec<u8>> {
    read_to_limit(limit, fs::File::open(path)?)
}

fn read_to_limit(limit: u64, file: fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let problem = format!("the file is over the limit of {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// Writes a file; the error names it.
pub fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the folders in a folder that are not hidden, by name. A link that leads nowhere is an error: it may have been a folder.
pub fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.as_encoded_bytes().starts_with(b".") && fs::metadata(&path)?.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
