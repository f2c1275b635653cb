//! The versions of glibc that programs need.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};

/// Returns the oldest glibc that has all symbols of a program or library.
pub(super) fn needed(file: &Path) -> anyhow::Result<(u32, u32)> {
    let output = Command::new("readelf")
        .env("LC_ALL", "C")
        .args(["--version-info", "--wide"])
        .arg(file)
        .output()
        .context("start readelf")?;
    ensure!(
        output.status.success(),
        "readelf {}: {}",
        file.display(),
        output.status
    );
    newest(&String::from_utf8_lossy(&output.stdout)).with_context(|| file.display().to_string())
}

/// Returns the newest version in what `readelf` prints.
fn newest(text: &str) -> anyhow::Result<(u32, u32)> {
    let named = text.split("Name: GLIBC_").skip(1);
    let mut newest = None;
    for rest in named {
        let name = rest.split_whitespace().next().unwrap_or_default();
        let version = version(name);
        newest = newest.max(Some(
            version.with_context(|| format!("GLIBC_{name} is no version"))?,
        ));
    }
    newest.context("it needs no glibc")
}

/// Returns the first two numbers of a version.
fn version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let text = "\
            Version needs section '.gnu.version_r' contains 2 entries:\n\
            000000: Version: 1  File: libm.so.6  Cnt: 1\n\
            0x0010:   Name: GLIBC_2.9  Flags: none  Version: 12\n\
            0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 5\n\
            0x0030:   Name: GLIBC_2.34  Flags: none  Version: 4\n\
            0x0040:   Name: GCC_4.2.0  Flags: none  Version: 3\n";
        assert_eq!(newest(text).unwrap(), (2, 34));
    }

    #[test]
    fn what_is_no_version_is_no_promise() {
        assert!(newest("Name: GLIBC_PRIVATE  Flags: none").is_err());
        assert!(newest("Name: GLIBC_2.2.5 Name: GLIBC_ABI_DT_RELR").is_err());
        assert!(newest("").is_err());
    }
}
