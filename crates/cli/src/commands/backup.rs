//! `packhorse backup` and `packhorse restore`: the gateway's state as one file, and back.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_cluster::ArtifactDigest;
use packhorse_service::StateDir;
use packhorse_terminal::{
    context::{self, Context},
    output,
};
use sha2::{Digest as _, Sha256};

/// The name of the gateway's database.
const DATABASE: &str = "packhorse.db";
/// The folder of the gateway's model files.
const ARTIFACTS: &str = "artifacts";
/// The files of a state folder that a backup may contain beside the database and the model files.
const TOKENS: [&str; 2] = ["admin-token", "agent-token"];
/// The files of a state folder that belong to its database; the last says which cluster it is of.
const DATABASE_FILES: [&str; 4] = [
    DATABASE,
    "packhorse.db-wal",
    "packhorse.db-shm",
    "store.json",
];
/// The largest number of earlier states that a folder keeps.
const MAX_REPLACED: u32 = 1000;
/// The folder into which a backup is unpacked before anything of the state folder is replaced.
const UNPACKED: &str = "restore.part";

#[derive(clap::Args)]
#[command(after_help = "Example:\n  packhorse backup packhorse-2026-11-22.tar")]
pub(crate) struct BackupArgs {
    /// File to write, which must not exist. It contains the gateway's tokens: keep it as safe as them
    file: PathBuf,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  packhorse restore packhorse-2026-11-22.tar --state-dir /var/lib/packhorse"
)]
pub(crate) struct RestoreArgs {
    /// File that packhorse backup has written
    file: PathBuf,
    /// State folder of the gateway, which must be stopped [default: packhorse in the user's data folder, ~/.local/share]
    #[arg(long, value_name = "DIR", env = "PACKHORSE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Restore into a folder that has a database; its files are moved to replaced-1, replaced-2, …
    #[arg(long)]
    replace: bool,
}

impl BackupArgs {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let (part, file) = (with_suffix(&self.file, ".part"), &self.file);
        ensure!(!file.exists(), "{} exists already", file.display());
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part);
        let mut writer = opened.with_context(|| format!("cannot write {}", part.display()))?;
        let written = admin.backup(&mut writer).await;
        let complete = written.map_err(anyhow::Error::from).and_then(|bytes| {
            writer.sync_all()?;
            // An archive that ends early is no backup.
            let entries = check(File::open(&part)?)?;
            fs::rename(&part, file)?;
            Ok((bytes, entries))
        });
        let (bytes, entries) = match complete {
            Ok(complete) => complete,
            Err(e) => {
                let _ = fs::remove_file(&part);
                return Err(e);
            }
        };
        if context.json() {
            let result = serde_json::json!({"file": file, "bytes": bytes, "model_files": entries});
            return output::print_json(&result);
        }
        Ok(output::print_line(format!(
            "{}: {bytes} bytes, {entries} model files",
            file.display()
        ))?)
    }
}

impl RestoreArgs {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<()> {
        let archive = File::open(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        let folder = match self.state_dir {
            Some(folder) => folder,
            None => context::default_state_dir().context("name the folder with --state-dir")?,
        };
        // A gateway holds this lock while it runs.
        let state = StateDir::open(&folder)?;
        let folder = state.path();
        ensure!(
            self.replace || !folder.join(DATABASE).exists(),
            "{} has a database already: name another folder, or give --replace",
            folder.display()
        );
        let unpacked = folder.join(UNPACKED);
        remove_folder(&unpacked)?;
        fs::create_dir(&unpacked)?;
        let files = unpack(archive, &unpacked).inspect_err(|_| {
            let _ = fs::remove_dir_all(&unpacked);
        })?;
        put_in_place(folder, &unpacked)?;
        if context.json() {
            let result = serde_json::json!({"state_dir": folder, "model_files": files});
            return output::print_json(&result);
        }
        Ok(output::print_line(format!(
            "{}: the database and {files} model files are restored; start the gateway",
            folder.display()
        ))?)
    }
}

/// Moves what was unpacked to its place in the state folder, and what was there before aside. The database comes last: without it, the
/// folder is an empty one.
fn put_in_place(folder: &Path, unpacked: &Path) -> anyhow::Result<()> {
    let aside = (1..=MAX_REPLACED)
        .map(|number| folder.join(format!("replaced-{number}")))
        .find(|path| !path.exists())
        .with_context(|| {
            format!("{MAX_REPLACED} replaced states are in the folder; remove some")
        })?;
    // A log of the replaced database would be applied to the restored one.
    let names = DATABASE_FILES.iter().chain(&TOKENS).chain([&ARTIFACTS]);
    for name in names {
        // A backup without tokens leaves those of the folder.
        let keeps = TOKENS.contains(name) && !unpacked.join(name).exists();
        if folder.join(name).exists() && !keeps {
            fs::create_dir_all(&aside)?;
            fs::rename(folder.join(name), aside.join(name))?;
        }
    }
    for name in TOKENS.iter().chain([&ARTIFACTS, &DATABASE]) {
        if unpacked.join(name).exists() {
            fs::rename(unpacked.join(name), folder.join(name))?;
        }
    }
    fs::remove_dir(unpacked)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Reads an archive to its end. Returns the number of its model files.
fn check(archive: File) -> anyhow::Result<usize> {
    read_archive(archive, |_, entry| {
        let mut hash = Sha256::new();
        io::copy(entry, &mut HashWriter(&mut hash))?;
        Ok(hash.finalize().into())
    })
}

/// Unpacks an archive into an empty folder, durably. Returns the number of its model files.
fn unpack(archive: File, folder: &Path) -> anyhow::Result<usize> {
    fs::create_dir(folder.join(ARTIFACTS))?;
    let files = read_archive(archive, |name, entry| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(folder.join(name))?;
        let mut hash = Sha256::new();
        let mut chunk = vec![0; 256 << 10];
        loop {
            let read = entry.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            hash.update(&chunk[..read]);
            file.write_all(&chunk[..read])?;
        }
        file.sync_all()?;
        Ok(hash.finalize().into())
    })?;
    File::open(folder.join(ARTIFACTS))?.sync_all()?;
    Ok(files)
}

/// Reads the entries of an archive, each with `read`, which returns its SHA-256. Returns the number of model files.
///
/// # Errors
/// If the archive is no backup: it is cut off, has no database, another entry than a backup has, or a model file that is not what its name
/// says.
fn read_archive(
    archive: File,
    mut read: impl FnMut(&str, &mut dyn Read) -> io::Result<[u8; 32]>,
) -> anyhow::Result<usize> {
    let mut found: BTreeMap<String, [u8; 32]> = BTreeMap::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().context("this is not a backup")? {
        let mut entry = entry.context("this is not a backup, or it is cut off")?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap_or_default();
        let digits = name.strip_prefix("artifacts/");
        let expected =
            name == DATABASE || TOKENS.contains(&name.as_str()) || digits.is_some_and(is_digest);
        ensure!(
            expected && entry.header().entry_type().is_file() && !found.contains_key(&name),
            "this is not a backup: it contains {name:?}"
        );
        let size = entry.size();
        let mut counted = Counted {
            inner: &mut entry,
            bytes: 0,
        };
        let digest = read(&name, &mut counted).with_context(|| format!("cannot unpack {name}"))?;
        ensure!(counted.bytes == size, "the backup is cut off in {name}");
        if let Some(digits) = digits {
            let right = ArtifactDigest::from_sha256(digest).to_hex() == digits;
            ensure!(right, "the backup is damaged: {name} has another digest");
        }
        found.insert(name, digest);
    }
    if !found.contains_key(DATABASE) {
        bail!("this is not a backup: it contains no {DATABASE}");
    }
    Ok(found
        .keys()
        .filter(|name| name.starts_with("artifacts/"))
        .count())
}

fn is_digest(digits: &str) -> bool {
    format!("sha256:{digits}").parse::<ArtifactDigest>().is_ok()
}

/// Counts the bytes that are read.
struct Counted<'a> {
    inner: &'a mut dyn Read,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Hashes what is written.
struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an archive with these entries.
    fn archive(folder: &Path, entries: &[(&str, &[u8])]) -> PathBuf {
        let path = folder.join("backup.tar");
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        for (name, content) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            // As it is, also where the library would refuse it.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap();
        path
    }

    fn digest_of(content: &[u8]) -> String {
        ArtifactDigest::from_sha256(Sha256::digest(content).into()).to_hex()
    }

    #[test]
    fn what_is_not_a_backup_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |entries: &[(&str, &[u8])]| {
            let path = archive(folder.path(), entries);
            format!("{:#}", check(File::open(path).unwrap()).unwrap_err())
        };
        let wrong = format!("artifacts/{}", digest_of(b"one"));
        for (entries, reason) in [
            (vec![], "contains no packhorse.db"),
            (
                vec![("packhorse.db", &b"db"[..]), ("../admin-token", b"x")],
                "../admin-token",
            ),
            (
                vec![("packhorse.db", b"db"), ("/etc/passwd", b"x")],
                "/etc/passwd",
            ),
            (
                vec![("packhorse.db", b"db"), ("packhorse.db", b"db")],
                "packhorse.db",
            ),
            (
                vec![("packhorse.db", b"db"), ("artifacts/x", b"x")],
                "artifacts/x",
            ),
            (
                vec![("packhorse.db", b"db"), (&wrong, b"two")],
                "has another digest",
            ),
        ] {
            let refusal = refusal(&entries);
            assert!(refusal.contains(reason), "{refusal}");
        }
        let right = format!("artifacts/{}", digest_of(b"one"));
        let path = archive(folder.path(), &[("packhorse.db", b"db"), (&right, b"one")]);
        assert_eq!(check(File::open(&path).unwrap()).unwrap(), 1);
        // A backup that is cut off anywhere is none.
        let whole = fs::read(&path).unwrap();
        for length in [100, 600, 1030, 1700] {
            fs::write(&path, &whole[..length]).unwrap();
            let error = check(File::open(&path).unwrap());
            assert!(error.is_err(), "{length} bytes were taken for a backup");
        }
    }

    #[test]
    fn a_restore_moves_aside_what_it_replaces_and_no_log_of_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let unpacked = state.join(UNPACKED);
        fs::create_dir_all(unpacked.join(ARTIFACTS)).unwrap();
        fs::create_dir(state.join(ARTIFACTS)).unwrap();
        for name in DATABASE_FILES.iter().chain(&TOKENS) {
            fs::write(state.join(name), "old").unwrap();
        }
        fs::write(unpacked.join(DATABASE), "new").unwrap();
        fs::write(unpacked.join("admin-token"), "new").unwrap();
        put_in_place(&state, &unpacked).unwrap();
        let read = |name: &str| fs::read_to_string(state.join(name)).ok();
        assert_eq!(read(DATABASE).as_deref(), Some("new"));
        assert_eq!(read("packhorse.db-wal"), None);
        assert_eq!(read("admin-token").as_deref(), Some("new"));
        assert_eq!(
            read("agent-token").as_deref(),
            Some("old"),
            "the backup has none"
        );
        assert_eq!(read("replaced-1/packhorse.db-wal").as_deref(), Some("old"));
        assert_eq!(read("replaced-1/admin-token").as_deref(), Some("old"));
        assert!(!unpacked.exists());
    }
}
