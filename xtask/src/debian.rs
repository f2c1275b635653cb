//! Packages of Debian that some tests need, installed where this machine allows it.

use std::process::Command;

/// Installs packages with all that they need, and nothing that they only recommend.
///
/// # Errors
/// Says which command failed: this is no Debian, its mirror cannot be reached, or the user is not root.
pub(crate) fn install(packages: &[&str]) -> Result<(), String> {
    let update = ["update", "-qq"];
    let install = ["install", "-qq", "-y", "--no-install-recommends"];
    for arguments in [&update[..], &[&install, packages].concat()] {
        let status = Command::new("apt-get").args(arguments).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("`apt-get {}` failed", arguments.join(" ")));
        }
    }
    Ok(())
}
