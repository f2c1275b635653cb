//! The file format of wheels: a zip archive with the digest of each of its files.

use std::{fs::File, io::Write as _, path::Path};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use unzip::{DateTime, ZipWriter, write::SimpleFileOptions};

/// A file of a wheel.
pub(super) struct Member {
    /// Its path from the folder into which wheels are installed.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    /// True for a file that can be executed.
    pub(super) is_program: bool,
}

impl Member {
    /// Returns a file that cannot be executed.
    pub(super) fn file(path: String, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            path,
            bytes: bytes.into(),
            is_program: false,
        }
    }

    /// Returns its line in the list of all files.
    fn record(&self) -> String {
        let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&self.bytes));
        format!("{},sha256={digest},{}\n", self.path, self.bytes.len())
    }
}

/// Writes the members, in their order, and the list of them at the path `record`. Every file has the earliest time of the format.
pub(super) fn write(wheel: &Path, mut members: Vec<Member>, record: &str) -> anyhow::Result<()> {
    let lines: String = members.iter().map(Member::record).collect();
    // The list has no digest of itself.
    members.push(Member::file(
        record.to_owned(),
        format!("{lines}{record},,\n"),
    ));
    let file = File::create(wheel).with_context(|| format!("write {}", wheel.display()))?;
    let mut archive = ZipWriter::new(file);
    for member in members {
        let options = SimpleFileOptions::default()
            .last_modified_time(DateTime::default())
            .unix_permissions(if member.is_program { 0o755 } else { 0o644 });
        archive.start_file(member.path, options)?;
        archive.write_all(&member.bytes)?;
    }
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_has_the_digest_without_padding_and_the_size() {
        let line = Member::file("a/b.py".to_owned(), "abc").record();
        // FIPS 180-2, in base64.
        let digest = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
        assert_eq!(line, format!("a/b.py,sha256={digest},3\n"));
    }
}
