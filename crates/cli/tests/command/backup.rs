//! `packhorse backup` and `packhorse restore`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use packhorse_cluster::ArtifactDigest;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use wiremock::ResponseTemplate;

use packhorse_stand_in::{Gateway, admin};

/// A backup with a model file, as the gateway sends it.
fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let digits = ArtifactDigest::from_sha256(Sha256::digest(b"a model").into()).to_hex();
    let model = format!("artifacts/{digits}");
    for (name, content) in [
        ("packhorse.db", &b"the database"[..]),
        ("admin-token", b"the old token"),
        (&model, b"a model"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        builder.append_data(&mut header, name, content).unwrap();
    }
    builder.into_inner().unwrap()
}

async fn with_backup(body: Vec<u8>) -> Gateway {
    let gateway = Gateway::start(crate::PROGRAM).await;
    admin("GET", "/v1/backup")
        .respond_with(ResponseTemplate::new(200).set_body_raw(body, "application/x-tar"))
        .mount(&gateway.server)
        .await;
    gateway
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_backup_is_written_whole_and_restored_to_a_state_folder() {
    let gateway = with_backup(archive()).await;
    let ran = gateway.run(&["backup", "b.tar"]);
    let bytes = archive().len();
    assert_eq!(ran.text(), format!("b.tar: {bytes} bytes, 1 model files\n"));
    assert_eq!(fs::read(gateway.path("b.tar")).unwrap(), archive());
    assert_eq!(mode(&gateway.path("b.tar")), 0o600);
    assert!(
        gateway
            .run(&["backup", "b.tar"])
            .error()
            .contains("exists already")
    );

    let ran = gateway.run_bare(&["restore", "b.tar", "--state-dir", "state", "--json"]);
    assert_eq!(ran.json()["model_files"], 1);
    let state = gateway.path("state");
    assert_eq!(
        fs::read(state.join("packhorse.db")).unwrap(),
        b"the database"
    );
    assert_eq!(
        fs::read(state.join("admin-token")).unwrap(),
        b"the old token"
    );
    assert_eq!(mode(&state.join("admin-token")), 0o600);
    assert_eq!(fs::read_dir(state.join("artifacts")).unwrap().count(), 1);

    // A folder that is in use as one is not overwritten by mistake.
    let again = ["restore", "b.tar", "--state-dir", "state"];
    let refused = gateway.run_bare(&again);
    assert!(refused.error().contains("--replace"), "{refused:?}");
    fs::write(state.join("packhorse.db-wal"), "a log").unwrap();
    let replaced = gateway.run_bare(&[&again[..], &["--replace"]].concat());
    assert!(
        replaced.text().contains("1 model files are restored"),
        "{replaced:?}"
    );
    assert!(!state.join("packhorse.db-wal").exists());
    assert!(state.join("replaced-1/packhorse.db-wal").exists());
}

#[tokio::test]
async fn a_backup_that_breaks_off_leaves_no_file_and_a_damaged_one_no_state() {
    let mut cut = archive();
    cut.truncate(1300);
    let gateway = with_backup(cut.clone()).await;
    let ran = gateway.run(&["backup", "b.tar"]);
    assert!(ran.error().contains("cut off"), "{ran:?}");
    assert!(!gateway.path("b.tar").exists() && !gateway.path("b.tar.part").exists());

    gateway.file("cut.tar", cut);
    let ran = gateway.run_bare(&["restore", "cut.tar", "--state-dir", "state"]);
    assert!(ran.error().contains("cut off"), "{ran:?}");
    assert!(!gateway.path("state/packhorse.db").exists());
    assert!(!gateway.path("state/restore.part").exists());

    let refusing = Gateway::start(crate::PROGRAM).await;
    let busy = json!({"error": "another backup is being made; retry when it has ended"});
    refusing.answers("GET", "/v1/backup", 503, busy).await;
    let ran = refusing.run(&["backup", "b.tar"]);
    assert!(
        ran.error().contains("another backup is being made"),
        "{ran:?}"
    );
}
