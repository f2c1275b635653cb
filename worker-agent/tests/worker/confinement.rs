//! The confinement of workers, with a program that reads whatever file it is asked for.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use packhorse_wire::FailureKind;
use packhorse_worker_agent::handoff::{ExecutorChoice, ServeTask};

use crate::{
    gateway::{Link, Tensor},
    process::{Worker, program, tensor},
    torch::{self, modules},
};

pub(crate) const SECRET: &[u8] = b"a token!, and more";
/// A user without an entry in the system.
const USER: u32 = 61_234;

pub(crate) fn reader() -> ServeTask {
    let (path, bytes) = (tensor("path", "FP32", &[-1]), tensor("bytes", "FP32", &[8]));
    torch::task("Reader", program(0, vec![path], vec![bytes]))
}

/// Asks the program for a file.
pub(crate) fn ask(link: &mut Link, id: u64, file: &Path) {
    let name: Vec<f32> = file.to_str().unwrap().bytes().map(f32::from).collect();
    let length = name.len().try_into().unwrap();
    link.send(id, 1, &[Tensor::fp32(&[length], &name)]);
}

/// Returns the first bytes of a file that the program reads.
pub(crate) fn read(link: &mut Link, id: u64, file: &Path) -> Vec<u8> {
    ask(link, id, file);
    let (_, outputs) = link.result();
    let values = outputs[0].bytes.chunks_exact(4);
    let values = values.map(|value| f32::from_le_bytes(value.try_into().unwrap()) as u8);
    values.collect()
}

#[test]
fn a_program_reads_the_files_of_its_worker_and_none_of_a_gateway_on_the_same_machine() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("admin-token");
    fs::write(&token, SECRET).unwrap();
    let mut task = reader();
    let secret = dir.path().join("link-secret");
    fs::write(&secret, SECRET).unwrap();
    task.links.secret_file = Some(secret.clone());

    // Without confinement the program has what its user has.
    let worker = Worker::serve(&task);
    let mut link = Link::connect(worker.address(), &task, SECRET).unwrap();
    assert_eq!(read(&mut link, 1, &token), SECRET[..8]);
    drop((link, worker));

    let worker = Worker::serve_confined(&task);
    let mut link = Link::connect(worker.address(), &task, SECRET).unwrap();
    let environment = format!("/proc/{}/environ", std::process::id());
    for (id, file) in (1..).zip([&token, &secret, Path::new(&environment)]) {
        ask(&mut link, id, file);
        let failure = link.failure();
        assert_eq!(failure.kind, FailureKind::ModuleThrew);
        let text = &failure.message;
        assert!(text.contains("Permission denied"), "{text}");
    }
    let ExecutorChoice::Torch { artifact, .. } = &task.execution.executor else {
        panic!("a program of libtorch")
    };
    assert_eq!(artifact, &modules().join("Reader.pt"));
    assert_eq!(read(&mut link, 9, artifact)[..2], *b"PK");
}

#[test]
fn a_program_of_a_user_of_its_own_reads_no_file_of_a_gateway_without_landlock() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root starts processes of other users");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let token = dir.path().join("admin-token");
    fs::write(&token, SECRET).unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let mut task = reader();
    task.links.own_user = true;
    let worker = Worker::serve_as(USER, &task, SECRET);
    assert!(Link::connect(worker.address(), &task, b"another").is_err());
    let mut link = Link::connect(worker.address(), &task, SECRET).unwrap();

    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let four = format!("\t{USER}").repeat(4);
    assert_eq!((of("Uid:"), of("Gid:")), (Some(&*four), Some(&*four)));
    assert_eq!(of("Groups:").map(str::trim), Some(""));
    assert_eq!(of("CapEff:").map(str::trim), Some("0000000000000000"));

    assert_eq!(of("NoNewPrivs:").map(str::trim), Some("1"));

    // Its own memory is among the files that it cannot read, as any other process of its user cannot.
    let environment = format!("/proc/{}/environ", std::process::id());
    let memory = format!("/proc/{}/environ", worker.pid());
    for (id, file) in (1..).zip([&token, Path::new(&environment), Path::new(&memory)]) {
        ask(&mut link, id, file);
        let failure = link.failure();
        let text = &failure.message;
        assert!(text.contains("Permission denied"), "{text}");
    }
    fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(read(&mut link, 9, &token), SECRET[..8]);
}
