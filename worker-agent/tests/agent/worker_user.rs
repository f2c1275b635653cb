//! Workers that run as a user of their own, below an agent of root.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::Command,
};

use packhorse_cluster::ReplicaState;

use crate::common::{FakeGateway, Home, digest, profile, replica, signal};

/// A user without an entry in the system.
const USER: u32 = 61_234;

/// Returns a folder that other users can pass through, and the flags of an agent with workers of another user; `None` where that cannot be.
pub(crate) fn home() -> Option<(Home, [String; 2])> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root starts processes of other users");
        return None;
    }
    let home = Home::new();
    fs::set_permissions(home.path(""), Permissions::from_mode(0o711)).unwrap();
    Some((home, ["--worker-user".to_owned(), USER.to_string()]))
}

/// Returns the users and the groups in a process's status.
pub(crate) fn identity(pid: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let fields = ["Uid:", "Gid:", "Groups:"];
    let values = fields.iter().flat_map(|field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap().split_whitespace()
    });
    values.map(str::to_owned).collect()
}

/// Returns true if a process of this user can read a file.
fn can(user: u32, action: &str, file: &Path) -> bool {
    let mut test = Command::new("test");
    test.args([action]).arg(file).uid(user).gid(user);
    test.status().unwrap().success()
}

#[tokio::test]
async fn a_worker_has_a_user_of_its_own_and_the_next_agent_adopts_and_stops_it() {
    let Some((home, flags)) = home() else {
        return;
    };
    let secret = home.path("link-secret");
    fs::write(&secret, "a secret of the links").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let secret = secret.to_str().unwrap();
    let flags = [
        &flags[0],
        &flags[1],
        "--link-secret-file",
        secret,
        "--confine-workers",
        "off",
    ];
    let gateway = FakeGateway::start().await;
    let mut agent = home.agent(gateway.address, &flags);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    let pid = before.pid.unwrap();
    assert_eq!(identity(pid), vec![USER.to_string(); 8]);

    let state = home.path("state");
    let folder = state.join("replicas/1-0");
    let artifact = state.join("artifacts").join(digest().to_hex());
    let socket = folder.join("link.sock");
    for (action, file, worker) in [
        ("-r", &artifact, true),
        ("-w", &artifact, false),
        ("-r", &state.join("artifacts"), false),
        ("-r", &state, false),
        ("-r", &state.join("instance"), false),
        ("-r", &state.join("lock"), false),
        ("-w", &state.join("replicas"), false),
        ("-w", &folder.join("wanted.json"), false),
        ("-r", &folder.join("task.json"), true),
        ("-w", &folder.join("task.json"), false),
        ("-w", &folder.join("worker.log"), true),
        ("-w", &folder.join("tmp"), true),
        ("-w", &socket, true),
        ("-w", &state.join("locks/sim0"), true),
        ("-w", &state.join("locks"), false),
    ] {
        assert_eq!(can(USER, action, file), worker, "{action} {file:?}");
        assert!(!can(USER + 1, action, file), "another user: {file:?}");
    }
    assert_eq!(fs::metadata(&folder).unwrap().uid(), 0);

    agent.kill();
    gateway.state.send_modify(|state| state.status = None);
    // The next agent need not have the same flag.
    let next = home.agent(gateway.address, &["--worker-user", "root"]);
    let after = gateway.until_state(ReplicaState::Ready).await;
    assert_eq!(after, before);
    gateway.want(vec![], vec![]);
    gateway.until_empty().await;
    assert!(home.workers().is_empty());
    drop(next);
}

#[tokio::test]
async fn what_a_model_leaves_in_its_folder_leads_the_agent_to_no_other_file() {
    let Some((home, flags)) = home() else {
        return;
    };
    let gateway = FakeGateway::start().await;
    let _agent = home.agent(gateway.address, &[&flags[0], &flags[1]]);
    gateway.want(vec![replica("1-0")], vec![]);
    let first = gateway.until_state(ReplicaState::Ready).await;
    let secret = home.path("secret");
    fs::write(&secret, "as it was").unwrap();
    let folder = home.path("state/replicas/1-0");
    let remove = |name: &str| {
        let mut rm = Command::new("rm");
        rm.arg("-f").arg(folder.join(name)).uid(USER).gid(USER);
        rm.output().unwrap().status.success()
    };
    // The files of the agent are not the model's to replace.
    for name in ["wanted.json", "task.json", "user", "worker.log"] {
        assert!(!remove(name), "{name}");
    }
    assert!(remove("status.json"));
    for name in ["worker.log.old", "status.json", "probe"] {
        symlink(&secret, folder.join(name)).unwrap();
    }
    signal(first.pid.unwrap(), "KILL");
    let second = gateway
        .until("a restarted replica", |state| {
            let replica = state.status.as_ref()?.replicas.first()?.clone();
            (replica.restarts == 1 && replica.state == ReplicaState::Ready).then_some(replica)
        })
        .await;
    assert_ne!(second.pid, first.pid);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "as it was");
}

#[tokio::test]
async fn a_measurement_runs_as_the_workers_user() {
    let Some((home, flags)) = home() else {
        return;
    };
    let gateway = FakeGateway::start().await;
    let _agent = home.agent(gateway.address, &[&flags[0], &flags[1]]);
    gateway.want(vec![], vec![profile()]);
    let csv = gateway
        .until("a profile", |state| {
            let report = state.status.as_ref()?.profiles.first()?;
            report.csv.clone()
        })
        .await;
    assert!(csv.contains("T4"), "{csv}");
}

#[tokio::test]
async fn an_agent_whose_workers_cannot_run_as_the_given_user_says_so_and_ends() {
    let Some((home, flags)) = home() else {
        return;
    };
    // The state folder is out of the user's reach.
    fs::set_permissions(home.path(""), Permissions::from_mode(0o700)).unwrap();
    let gateway = FakeGateway::start().await;
    let mut agent = home.agent(gateway.address, &[&flags[0], &flags[1]]);
    assert!(!agent.0.wait().unwrap().success());
    let log = fs::read_to_string(home.path("agent.log")).unwrap();
    assert!(
        log.contains("--worker-user: a worker cannot run as 61234"),
        "{log}"
    );
}
