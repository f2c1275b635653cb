//! The dashboard's files: how they are served, and that they are those of their sources.

use std::{
    fs,
    path::{Path, PathBuf},
};

use reqwest::Method;
use sha2::{Digest as _, Sha256};

use crate::support::{client, gateway::Gateway};

const STALE: &str = "is stale: run `cargo xtask web`";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn hex_digest(hash: Sha256) -> String {
    hex::encode(hash.finalize())
}

/// Adds the paths of the files of a folder, relative to `web`.
fn add_files(web: &Path, folder: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(web.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            add_files(web, &path, paths);
        } else {
            paths.push(path);
        }
    }
}

#[tokio::test]
async fn the_page_needs_no_token_and_allows_only_its_own_files() {
    let gateway = Gateway::start().await;
    let address = gateway.app.admin_address();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml"),
        ("/experiments/6.1.csv", "text/csv; charset=utf-8"),
    ] {
        let url = format!("http://{address}{path}");
        let response = client().get(url).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let headers = response.headers();
        assert_eq!(headers["content-type"], kind);
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        for hole in ["unsafe", "http:", "https:", "data:", "*"] {
            assert!(!policy.contains(hole), "{policy}");
        }
    }
    let without = gateway
        .send(address, Method::GET, "/v1/models", None, Vec::new())
        .await;
    assert_eq!(without.status, 401);
    let inference = gateway.app.inference_address();
    let elsewhere = gateway
        .send(inference, Method::GET, "/", None, Vec::new())
        .await;
    assert_eq!(elsewhere.status, 404);
}

#[tokio::test]
async fn a_browser_that_has_a_file_gets_it_no_second_time_and_a_new_one_compressed() {
    let gateway = Gateway::start().await;
    let url = format!("http://{}/dashboard.js", gateway.app.admin_address());
    let client = client();
    let plain = client.get(&url).send().await.unwrap();
    let tag = plain.headers()["etag"].clone();
    let plain = plain.bytes().await.unwrap();
    let again = client.get(&url).header("if-none-match", tag).send().await;
    let again = again.unwrap();
    assert_eq!(again.status(), 304);
    assert!(again.bytes().await.unwrap().is_empty());
    let small = client
        .get(&url)
        .header("accept-encoding", "gzip, br")
        .send();
    let small = small.await.unwrap();
    assert_eq!(small.headers()["content-encoding"], "gzip");
    let small = small.bytes().await.unwrap();
    assert!(small.len() <= 200_000, "{} bytes", small.len());
    let mut unpacked = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(small.as_ref());
    std::io::Read::read_to_end(&mut decoder, &mut unpacked).unwrap();
    assert!(unpacked == plain);
}

#[test]
fn the_built_files_are_those_of_their_sources() {
    let web = repository().join("web");
    let mut paths = ["index.html", "package-lock.json", "vite.config.ts"]
        .map(ToOwned::to_owned)
        .to_vec();
    add_files(&web, "public", &mut paths);
    add_files(&web, "src", &mut paths);
    paths.retain(|path| {
        let is_test = path.ends_with(".test.ts") || path.ends_with(".test.tsx");
        path != "src/api/schema.ts" && !is_test
    });
    paths.sort();
    let mut hash = Sha256::new();
    for path in paths {
        let content = fs::read(web.join(&path)).unwrap();
        hash.update(format!("{path}\n{}\n", content.len()));
        hash.update(content);
    }
    let stored = fs::read_to_string(web.join("dist/sources.sha256")).unwrap();
    assert!(stored.trim() == hex_digest(hash), "web/dist {STALE}");
}

#[test]
fn the_generated_types_are_those_of_the_document() {
    let document = fs::read(repository().join("openapi/gateway.json")).unwrap();
    let digest = hex_digest(Sha256::new_with_prefix(document));
    let types = fs::read_to_string(repository().join("web/src/api/schema.ts")).unwrap();
    let head = types.lines().next().unwrap();
    assert!(head.contains(&digest), "web/src/api/schema.ts {STALE}");
}
