//! Tensors in POSIX shared memory, by Triton's extension.

use std::{
    fs::File,
    os::unix::fs::{FileExt as _, symlink},
    process,
};

use rustix::{
    fs::Mode,
    shm::{self, OFlags},
};
use serde_json::{Value, json};

use crate::support::{answer::Answer, inference_gateway::InferenceGateway};

/// A shared memory object of a test, which is removed when this is dropped.
pub(super) struct Object {
    pub(super) key: String,
    file: File,
}

impl Object {
    pub(super) fn create(test: &str, bytes: u64) -> Self {
        let key = format!("/packhorse-{}-{test}", process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file: File = shm::open(&key, flags, Mode::RUSR | Mode::WUSR)
            .unwrap()
            .into();
        file.set_len(bytes).unwrap();
        Self { key, file }
    }

    fn write(&self, at: u64, values: &[f32]) {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.file.write_all_at(&bytes, at).unwrap();
    }

    fn read(&self, at: u64, values: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * values];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        let floats = bytes.chunks_exact(4);
        floats
            .map(|float| f32::from_le_bytes(float.try_into().unwrap()))
            .collect()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        shm::unlink(&self.key).unwrap();
    }
}

async fn register(gateway: &InferenceGateway, name: &str, registration: Value) -> Answer {
    let path = format!("/v2/systemsharedmemory/region/{name}/register");
    gateway.post(&path, registration.to_string()).await
}

fn range(region: &str, offset: u64, bytes: u64) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
}

/// Asks for twice two floats, whose places are given.
async fn infer(gateway: &InferenceGateway, x: Value, y: Value) -> Answer {
    let request = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": x}],
        "outputs": [{"name": "y", "parameters": y}],
    });
    gateway
        .post("/v2/models/double/infer", request.to_string())
        .await
}

#[track_caller]
fn assert_refused(answer: &Answer, message: &str) {
    assert_eq!(answer.error(400), message);
}

#[tokio::test]
async fn inputs_and_outputs_go_through_registered_regions() {
    let gateway = InferenceGateway::with_computing_double().await;
    let object = Object::create("both-ways", 64);
    object.write(24, &[1.5, -2.0]);
    // The region begins within the object, and the range within the region.
    let region = json!({"key": object.key, "offset": 16, "byte_size": 48});
    assert_eq!(register(&gateway, "r", region).await.status, 200);
    let status = gateway.get("/v2/systemsharedmemory/status").await.json();
    assert_eq!(
        status,
        json!([{"name": "r", "key": object.key, "offset": 16, "byte_size": 48}])
    );
    assert_eq!(
        gateway
            .get("/v2/systemsharedmemory/region/r/status")
            .await
            .json(),
        status
    );

    let answer = infer(&gateway, range("r", 8, 8), range("r", 32, 16)).await;
    let expected = json!({
        "model_name": "double", "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2]}],
    });
    assert_eq!(answer.json(), expected);
    assert_eq!(object.read(48, 4), [3.0, -4.0, 0.0, 0.0]);

    // The object of a registered region may lose its name.
    let answer = infer(&gateway, range("r", 8, 8), json!({"binary_data": false})).await;
    assert_eq!(answer.json()["outputs"][0]["data"], json!([3.0, -4.0]));

    for path in [
        "/v2/systemsharedmemory/region/r/unregister",
        "/v2/systemsharedmemory/unregister",
    ] {
        assert_eq!(gateway.post(path, "").await.status, 200);
    }
    assert_eq!(
        gateway.get("/v2/systemsharedmemory/status").await.json(),
        json!([])
    );
    assert_refused(
        &infer(&gateway, range("r", 8, 8), range("r", 32, 16)).await,
        r#"input "x": shared memory region "r": there is no shared memory region "r""#,
    );
}

#[tokio::test]
async fn ranges_outside_of_regions_are_refused() {
    let gateway = InferenceGateway::with_computing_double().await;
    let object = Object::create("ranges", 64);
    let region = json!({"key": object.key, "byte_size": 64});
    register(&gateway, "r", region).await;
    let input = range("r", 0, 8);
    for (x, y, message) in [
        (
            range("r", 60, 8),
            json!({}),
            r#"input "x": shared memory region "r": it has 64 bytes, and 8 from byte 60 on are asked for"#,
        ),
        (
            range("r", u64::MAX, 8),
            json!({}),
            r#"input "x": shared memory region "r": it has 64 bytes, and 8 from byte 18446744073709551615 on are asked for"#,
        ),
        (
            input.clone(),
            range("r", 60, 8),
            r#"shared memory region "r": it has 64 bytes, and 8 from byte 60 on are asked for"#,
        ),
        (
            input.clone(),
            range("s", 0, 8),
            r#"there is no shared memory region "s""#,
        ),
        (
            input.clone(),
            range("r", 8, 4),
            r#"shared memory region "r": the output has 8 bytes, and parameters.shared_memory_byte_size is 4"#,
        ),
    ] {
        assert_refused(&infer(&gateway, x, y).await, message);
    }
    // Its owner makes the object smaller after the registration.
    object.file.set_len(4).unwrap();
    assert_refused(
        &infer(&gateway, input, json!({})).await,
        r#"input "x": shared memory region "r": its object was made smaller"#,
    );
}

#[tokio::test]
async fn objects_that_cannot_be_used_are_refused() {
    let gateway = InferenceGateway::with_computing_double().await;
    let object = Object::create("objects", 64);
    let refused = async |name: &str, registration: Value, message: &str| {
        assert_refused(&register(&gateway, name, registration).await, message);
    };
    let key = &object.key;
    refused(
        "r",
        json!({"key": "/there-is-no-such-object", "byte_size": 8}),
        r#"key "/there-is-no-such-object": No such file or directory (os error 2)"#,
    )
    .await;
    for bad in ["", "/", "name", "/../etc/passwd", "/a/b"] {
        let message = format!(
            "key {bad:?}: expected a slash and a name without slashes, of at most 255 bytes"
        );
        refused("r", json!({"key": bad, "byte_size": 8}), &message).await;
    }
    let message =
        format!("key {key:?}: it has 64 bytes, and the region would have 57 from byte 8 on");
    refused(
        "r",
        json!({"key": key, "offset": 8, "byte_size": 57}),
        &message,
    )
    .await;
    refused(
        &"n".repeat(257),
        json!({"key": key, "byte_size": 8}),
        "the name of a shared memory region has 1 to 256 bytes",
    )
    .await;
    let valid = json!({"key": key, "byte_size": 8});
    assert_eq!(register(&gateway, "r", valid.clone()).await.status, 200);
    refused(
        "r",
        valid.clone(),
        r#"shared memory region "r" is registered already: unregister it first"#,
    )
    .await;
    for number in 1..128 {
        assert_eq!(
            register(&gateway, &number.to_string(), valid.clone())
                .await
                .status,
            200
        );
    }
    refused(
        "one-more",
        valid,
        "the client has 128 shared memory regions, and may have no more than are free: 256 are registered at a time; unregister one first",
    )
    .await;
    let incomplete = register(&gateway, "s", json!({"key": key}))
        .await
        .error(400);
    assert!(
        incomplete.starts_with("missing field `byte_size`"),
        "{incomplete}"
    );
}

#[tokio::test]
async fn nothing_but_a_regular_object_is_opened_under_an_objects_name() {
    let gateway = InferenceGateway::with_computing_double().await;
    let object = Object::create("behind-a-link", 64);
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), [7; 64]).unwrap();
    let folder = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let name = |what: &str| format!("packhorse-{}-{what}", process::id());
    let entry = |what: &str| std::path::Path::new("/dev/shm").join(name(what));
    let target = std::path::Path::new("/dev/shm").join(&object.key[1..]);
    symlink(secret.path(), entry("to-a-file")).unwrap();
    symlink(target, entry("to-an-object")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, entry("fifo"), Mode::RWXU).unwrap();
    let folder_name = folder.path().file_name().unwrap().to_str().unwrap();
    let refusals = [
        (name("to-a-file"), "it is a symbolic link"),
        (name("to-an-object"), "it is a symbolic link"),
        (name("fifo"), "it is no shared memory object"),
        (folder_name.to_owned(), "Is a directory (os error 21)"),
        (
            "..".to_owned(),
            "expected a slash and a name without slashes, of at most 255 bytes",
        ),
    ];
    for (name, problem) in refusals {
        let region = json!({"key": format!("/{name}"), "offset": 0, "byte_size": 8});
        let answer = register(&gateway, "r", region).await;
        assert_refused(&answer, &format!("key {:?}: {problem}", format!("/{name}")));
    }
    for what in ["to-a-file", "to-an-object", "fifo"] {
        std::fs::remove_file(entry(what)).unwrap();
    }
    assert_eq!(std::fs::read(secret.path()).unwrap(), [7; 64]);
}
