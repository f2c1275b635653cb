//! Downloads from a Python package index, by name and SHA-256.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use packhorse_client::Authorities;
use packhorse_cluster::ArtifactDigest;
use packhorse_terminal::output;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, RANGE},
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::wheels::Wheel;

/// The media type of an index in JSON (PEP 691).
const INDEX_JSON: &str = "application/vnd.pypi.simple.v1+json";
/// The largest page of an index that is read, in bytes.
const INDEX_LIMIT: usize = 64 << 20;
/// The time within which a connection must be there, and in which something of an answer must arrive.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The number of times that a broken download is continued.
const ATTEMPTS: u32 = 5;
/// The size of the parts in which a file is read for its digest, in bytes.
const CHUNK: usize = 256 << 10;

/// A Python package index.
pub(super) struct Index {
    url: Url,
    client: Client,
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
    /// Makes a client of the index.
    ///
    /// # Errors
    /// If the URL is none, or is to be asked over TLS and there are no authorities to trust.
    pub(super) fn new(url: &str, authorities: &Authorities) -> anyhow::Result<Self> {
        let not_a_url = || format!("--index-url: {url:?} is not an http URL");
        // A link of a page is resolved against the page, whose path ends in a slash.
        let url = Url::parse(&format!("{}/", url.trim_end_matches('/'))).with_context(not_a_url)?;
        ensure!(matches!(url.scheme(), "http" | "https"), not_a_url());
        let tls = authorities
            .client_config(url.scheme())
            .context("--ca-file")?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(SILENCE_LIMIT)
            .read_timeout(SILENCE_LIMIT)
            .build()?;
        Ok(Self { url, client })
    }

    /// Downloads a wheel into the folder, or continues an earlier download, and checks its digest.
    pub(super) async fn download(&self, wheel: &Wheel, folder: &Path) -> anyhow::Result<PathBuf> {
        let file = folder.join(wheel.file);
        if is_intact(&file, wheel)? {
            return Ok(file);
        }
        let url = self.find(wheel).await?;
        let part = folder.join(format!("{}.part", wheel.file));
        for attempt in 1.. {
            match self.continue_download(&url, &part, wheel).await {
                Ok(()) => break,
                Err(e) if attempt < ATTEMPTS => {
                    output::note(format_args!("{}: {e:#}; continuing", wheel.file));
                }
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
    async fn find(&self, wheel: &Wheel) -> anyhow::Result<Url> {
        let page_url = self.url.join(&format!("{}/", wheel.package))?;
        let cannot_read = || format!("cannot read {page_url}");
        let mut response = self
            .client
            .get(page_url.clone())
            .header(ACCEPT, INDEX_JSON)
            .send()
            .await
            .with_context(cannot_read)?;
        let status = response.status();
        ensure!(status == StatusCode::OK, "{page_url} answers {status}");
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await.with_context(cannot_read)? {
            text.extend_from_slice(&chunk);
            ensure!(
                text.len() <= INDEX_LIMIT,
                "{page_url} is larger than {INDEX_LIMIT} bytes"
            );
        }
        let page: Page = serde_json::from_slice(&text)
            .with_context(|| format!("{page_url} is not an index in JSON (PEP 691)"))?;
        let found = page
            .files
            .into_iter()
            .find(|file| file.filename == wheel.file);
        let found = found.with_context(|| format!("{page_url} has no {}", wheel.file))?;
        // Mirrors give links that begin at their root, or at the page.
        page_url
            .join(&found.url)
            .with_context(|| format!("{page_url} links {:?}, which is not a URL", found.url))
    }

    /// Requests what is missing of a file and appends it.
    async fn continue_download(&self, url: &Url, part: &Path, wheel: &Wheel) -> anyhow::Result<()> {
        let mut done = fs::metadata(part).map_or(0, |metadata| metadata.len());
        if done == wheel.bytes {
            return Ok(());
        }
        let response = self
            .client
            .get(url.clone())
            .header(RANGE, format!("bytes={done}-"))
            .send()
            .await?;
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
        append(response, &mut file, done, wheel).await
    }
}

/// Appends the body of a response, with progress.
async fn append(
    mut response: Response,
    file: &mut File,
    mut done: u64,
    wheel: &Wheel,
) -> anyhow::Result<()> {
    let bar = output::byte_bar(wheel.package, wheel.bytes);
    while let Some(chunk) = response.chunk().await? {
        done += chunk.len() as u64;
        ensure!(
            done <= wheel.bytes,
            "the server sends more than the file's {} bytes",
            wheel.bytes
        );
        file.write_all(&chunk)?;
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
                let page = br#"{"files": [{"filename": "w.whl", "url": "../../files/w.whl"}]}"#;
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
        Index::new(&url, &Authorities::Machine).unwrap()
    }

    #[tokio::test]
    async fn a_broken_download_is_continued_and_a_finished_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let index = index();
        let file = index.download(&wheel(SHA256), folder.path()).await.unwrap();
        assert_eq!(fs::read(&file).unwrap(), CONTENT);
        // Nobody is asked any more.
        let nobody = Index::new("http://127.0.0.1:1", &Authorities::Machine).unwrap();
        let kept = nobody.download(&wheel(SHA256), folder.path()).await;
        assert_eq!(kept.unwrap(), file);
    }

    #[tokio::test]
    async fn a_changed_file_is_refused_and_not_kept() {
        const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";
        let folder = tempfile::tempdir().unwrap();
        let download = index().download(&wheel(OTHER), folder.path()).await;
        let error = download.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is not the file with the SHA-256"),
            "{error:#}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_index_has_an_http_url() {
        for bad in ["pypi.org/simple", "ftp://pypi.org/simple"] {
            let error = Index::new(bad, &Authorities::Machine).err().unwrap();
            assert!(error.to_string().starts_with("--index-url: "), "{error:#}");
        }
    }
}
