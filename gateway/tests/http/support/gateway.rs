//! A whole gateway with its own state folder, and an admin client.

use std::{net::SocketAddr, path::Path};

use clap::Parser as _;
use packhorse_cluster::ArtifactDigest;
use packhorse_gateway::{
    app::App,
    config::{Options, Settings},
};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{answer::Answer, client, poll, within};

/// A whole gateway with its own state folder.
pub(crate) struct Gateway {
    pub(crate) app: App,
    pub(crate) folder: TempDir,
    flags: Vec<String>,
    client: reqwest::Client,
}

pub(crate) fn settings(folder: &Path, flags: &[String]) -> Settings {
    let state = folder.join("state").display().to_string();
    let fixed = [
        "packhorse-gateway",
        "--listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
    ];
    let is_given = |fixed: &str| {
        let (name, _) = fixed.split_once('=').unwrap_or((fixed, ""));
        flags
            .iter()
            .any(|flag| flag.starts_with(&format!("{name}=")))
    };
    let fixed = fixed.into_iter().filter(|fixed| !is_given(fixed));
    let fixed = fixed.map(ToOwned::to_owned);
    let all = fixed
        .chain([format!("--state-dir={state}")])
        .chain(flags.iter().cloned());
    Options::try_parse_from(all).unwrap().settings().unwrap()
}

pub(crate) fn digest_of(file: &[u8]) -> ArtifactDigest {
    ArtifactDigest::from_sha256(Sha256::digest(file).into())
}

/// A registration of a model with one input and one output, both of four numbers.
pub(crate) fn registration(name: &str, artifact: ArtifactDigest) -> Value {
    json!({
        "name": name, "artifact": artifact, "max_batch_size": 8, "slo_ms": 200, "rate_rps": 50,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    })
}

impl Gateway {
    pub(crate) async fn start() -> Self {
        Self::with_flags(&[]).await
    }

    /// Starts a gateway with further flags, in which `{folder}` stands for the test's own folder.
    pub(crate) async fn with_flags(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let flags = flags.iter().map(|flag| flag.replace("{folder}", &path));
        let flags: Vec<String> = flags.collect();
        let app = App::start(settings(folder.path(), &flags)).await.unwrap();
        Self {
            app,
            folder,
            flags,
            client: client(),
        }
    }

    /// Stops it and starts another one on the same folder.
    pub(crate) async fn restarted(self) -> Self {
        self.app.shutdown().await;
        let app = App::start(settings(self.folder.path(), &self.flags))
            .await
            .unwrap();
        Self { app, ..self }
    }

    /// Stops it and starts another one with other flags on the same folder.
    pub(crate) async fn restarted_with(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restarted().await
    }

    pub(crate) fn token(&self, name: &str) -> String {
        let file = self.folder.path().join("state").join(name);
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    pub(crate) async fn send(
        &self,
        listener: SocketAddr,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Answer {
        let token = token.map(|token| format!("Bearer {token}"));
        let headers = token.iter().map(|token| ("authorization", &**token));
        self.send_with(listener, method, path, headers, body).await
    }

    pub(crate) async fn send_with<'h>(
        &self,
        listener: SocketAddr,
        method: Method,
        path: &str,
        headers: impl IntoIterator<Item = (&'h str, &'h str)>,
        body: Vec<u8>,
    ) -> Answer {
        let request = self
            .client
            .request(method, format!("http://{listener}{path}"))
            .body(body);
        let request = headers.into_iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let response = within(path, request.send()).await.unwrap();
        Answer::read(response).await
    }

    /// Sends a request to the admin listener with the admin token.
    pub(crate) async fn admin(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let token = self.token("admin-token");
        let address = self.app.admin_address();
        self.send(address, method, path, Some(&token), body.into())
            .await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.admin(Method::GET, path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.admin(Method::POST, path, body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.admin(Method::PUT, path, body.to_string()).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.admin(Method::PATCH, path, body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.admin(Method::DELETE, path, "").await
    }

    /// Stores a file.
    pub(crate) async fn upload(&self, file: &[u8]) -> ArtifactDigest {
        let digest = digest_of(file);
        let path = format!("/v1/artifacts/{digest}");
        let answer = self.admin(Method::PUT, &path, file).await;
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        digest
    }

    /// Registers a model with a file of its own.
    pub(crate) async fn register(&self, name: &str) -> Value {
        let digest = self.upload(format!("the file of {name}").as_bytes()).await;
        let answer = self.post("/v1/models", &registration(name, digest)).await;
        answer.ok(201)
    }

    /// Waits until a model is in a state.
    pub(crate) async fn wait_for_state(&self, model: &str, state: &str) -> Value {
        self.wait_for(model, &format!("{model} to be {state}"), |view| {
            view["state"] == state
        })
        .await
    }

    /// Waits until a condition of a model's view holds.
    pub(crate) async fn wait_for(
        &self,
        model: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/v1/models/{model}");
        poll(what, async || {
            let view = self.get(&path).await.ok(200);
            if holds(&view) { Ok(view) } else { Err(view) }
        })
        .await
    }

    /// Waits until a node is in a state.
    pub(crate) async fn wait_for_node(&self, node: &str, state: &str) -> Value {
        poll(&format!("{node} to be {state}"), async || {
            let nodes = self.get("/v1/nodes").await.ok(200);
            let views = nodes.as_array().unwrap().iter();
            let mut matching = views.filter(|v| v["name"] == node && v["state"] == state);
            matching.next().cloned().ok_or(nodes)
        })
        .await
    }
}
