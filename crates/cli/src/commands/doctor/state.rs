//! The gateway's state folder: who may use it, its token files, and its disk.

use std::{
    fs::{self, Metadata},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use nix::{
    sys::statvfs::statvfs,
    unistd::{AccessFlags, Uid, access},
};

use super::check::Check;

const FOLDER: &str = "state folder";
const TOKENS: &str = "token file";
const DISK: &str = "disk";

/// The least free space with which a model file and a backup can be expected to fit, in bytes.
const ROOMY: u64 = 5 << 30;
/// The least free space with which the database can be expected to go on, in bytes.
const SCARCE: u64 = 256 << 20;
/// The least number of characters of a token.
const TOKEN_MINIMUM: usize = 16;

/// Examines the state folder of a gateway on this machine.
pub(super) fn checks(dir: &Path) -> Vec<Check> {
    let Ok(metadata) = fs::metadata(dir) else {
        let text = format!(
            "{} does not exist: no gateway has run here with it",
            dir.display()
        );
        return vec![Check::skipped(FOLDER, text)];
    };
    let mut checks = vec![folder(dir, &metadata)];
    checks.extend(["admin-token", "agent-token"].map(|name| token(&dir.join(name))));
    checks.push(disk(dir));
    checks
}

fn folder(dir: &Path, metadata: &Metadata) -> Check {
    let shown = dir.display();
    if !metadata.is_dir() {
        let text = format!("{shown} is not a folder");
        return Check::problem(FOLDER, text, format!("mv {shown} {shown}.old"));
    }
    let user = Uid::effective();
    if metadata.uid() != user.as_raw() && !user.is_root() {
        let text = format!(
            "{shown} belongs to user {}, not to this one",
            metadata.uid()
        );
        return Check::problem(FOLDER, text, format!("sudo chown -R {user} {shown}"));
    }
    if access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        let text = format!("{shown} cannot be written");
        return Check::problem(FOLDER, text, format!("chmod u+rwx {shown}"));
    }
    if others_can_read(metadata) {
        let text = format!("other users can read {shown}");
        return Check::warning(FOLDER, text, format!("chmod 700 {shown}"));
    }
    Check::ok(FOLDER, format!("{shown} is this user's alone"))
}

fn token(file: &Path) -> Check {
    let shown = file.display();
    let (metadata, text) = match (fs::metadata(file), fs::read(file)) {
        (Ok(metadata), Ok(text)) => (metadata, text),
        (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("{shown} does not exist; the gateway may have been given another");
            return Check::skipped(TOKENS, text);
        }
        (_, Err(e)) | (Err(e), _) => {
            let text = format!("{shown} cannot be read: {e}");
            return Check::problem(TOKENS, text, format!("chmod 600 {shown}"));
        }
    };
    let secret = text.trim_ascii();
    if secret.len() < TOKEN_MINIMUM || !secret.iter().all(u8::is_ascii_graphic) {
        let text = format!("{shown} contains no token: {TOKEN_MINIMUM} or more visible characters");
        let cure = format!("rm {shown}    (and restart the gateway, which writes a new one)");
        return Check::problem(TOKENS, text, cure);
    }
    if others_can_read(&metadata) {
        let text = format!("other users can read {shown}");
        return Check::problem(TOKENS, text, format!("chmod 600 {shown}"));
    }
    Check::ok(TOKENS, format!("{shown} can be read by its owner only"))
}

fn others_can_read(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o077 != 0
}

fn disk(dir: &Path) -> Check {
    match statvfs(dir) {
        Ok(found) => free_space(dir, found.blocks_available() * found.fragment_size()),
        Err(e) => Check::skipped(
            DISK,
            format!("the disk of {} tells nothing: {e}", dir.display()),
        ),
    }
}

fn free_space(dir: &Path, free: u64) -> Check {
    let text = format!("{} MiB are free for {}", free >> 20, dir.display());
    let cure = "packhorse model remove NAME    (its file is deleted an hour later), or move the folder to a larger disk";
    if free < SCARCE {
        Check::problem(DISK, text, cure)
    } else if free < ROOMY {
        Check::warning(DISK, text, cure)
    } else {
        Check::ok(DISK, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::check::Verdict;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_as_the_gateway_makes_it_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o700);
        for name in ["admin-token", "agent-token"] {
            fs::write(dir.path().join(name), "0123456789abcdef\n").unwrap();
            mode(&dir.path().join(name), 0o600);
        }
        let found = checks(dir.path());
        assert!(
            found[..3].iter().all(|check| check.verdict == Verdict::Ok),
            "{found:?}"
        );
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn each_mistake_has_the_line_that_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o755);
        let (admin, agent) = (
            dir.path().join("admin-token"),
            dir.path().join("agent-token"),
        );
        fs::write(&admin, "0123456789abcdef\n").unwrap();
        mode(&admin, 0o644);
        fs::write(&agent, "short\n").unwrap();
        mode(&agent, 0o600);
        let found = checks(dir.path());
        let told = |index: usize| (found[index].verdict, found[index].cure.as_deref().unwrap());
        assert_eq!(
            told(0),
            (
                Verdict::Warning,
                format!("chmod 700 {}", dir.path().display()).as_str()
            )
        );
        assert_eq!(
            told(1),
            (
                Verdict::Problem,
                format!("chmod 600 {}", admin.display()).as_str()
            )
        );
        assert!(
            told(2).1.starts_with(&format!("rm {}", agent.display())),
            "{found:?}"
        );
        assert_eq!(
            checks(&dir.path().join("none"))[0].verdict,
            Verdict::Skipped
        );
        assert_eq!(checks(&admin)[0].verdict, Verdict::Problem);
    }

    #[test]
    fn a_disk_that_fills_up_is_a_warning_and_then_a_problem() {
        for (free, verdict) in [
            (ROOMY, Verdict::Ok),
            (ROOMY - 1, Verdict::Warning),
            (SCARCE, Verdict::Warning),
            (SCARCE - 1, Verdict::Problem),
        ] {
            assert_eq!(free_space(Path::new("/s"), free).verdict, verdict);
        }
    }
}
