//! The dashboard at `/`: a page for people, whose files are embedded. `web/` has its source, `web/dist` what `cargo xtask web` makes of it.
//!
//! The files contain no secret and need no token; the page asks for the token and sends it to the API. The page may load nothing from
//! elsewhere and run no script but its own: [`POLICY`].

use std::{io::Write as _, sync::OnceLock};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

use crate::api::ApiError;

/// The Content-Security-Policy of the page: only the gateway's own files, and requests to the gateway.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every file.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // A browser asks again every time; the tag spares it the bytes.
    (header::CACHE_CONTROL, "no-cache"),
];

/// An embedded file.
struct File {
    /// The path on the admin listener.
    path: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    /// The parts that are computed at the first request.
    encoded: OnceLock<Encoded>,
}

/// A file as it is sent.
struct Encoded {
    /// The entity tag: the beginning of the content's SHA-256.
    tag: HeaderValue,
    gzip: Bytes,
}

impl File {
    const fn new(path: &'static str, content_type: &'static str, content: &'static [u8]) -> Self {
        Self {
            path,
            content_type,
            content,
            encoded: OnceLock::new(),
        }
    }

    const fn results(path: &'static str, content: &'static [u8]) -> Self {
        Self::new(path, "text/csv; charset=utf-8", content)
    }

    fn encoded(&self) -> Result<&Encoded, ApiError> {
        if let Some(encoded) = self.encoded.get() {
            return Ok(encoded);
        }
        let digest = hex::encode(Sha256::digest(self.content));
        let tag = format!("\"{}\"", &digest[..32]);
        let tag = HeaderValue::from_str(&tag).map_err(|e| ApiError::internal(&e))?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(self.content)
            .map_err(|e| ApiError::internal(&e))?;
        let gzip = gzip.finish().map_err(|e| ApiError::internal(&e))?.into();
        Ok(self.encoded.get_or_init(|| Encoded { tag, gzip }))
    }

    fn response(&self, request: &HeaderMap) -> Result<Response, ApiError> {
        let encoded = self.encoded()?;
        let tag = [(header::ETAG, encoded.tag.clone())];
        if request.get(header::IF_NONE_MATCH) == Some(&encoded.tag) {
            return Ok((StatusCode::NOT_MODIFIED, HEADERS, tag).into_response());
        }
        let kind = [
            (header::CONTENT_TYPE, self.content_type),
            (header::VARY, "accept-encoding"),
        ];
        let accepted = request.get(header::ACCEPT_ENCODING);
        let accepts_gzip = accepted.is_some_and(|accepted| {
            accepted
                .to_str()
                .is_ok_and(|accepted| accepted.contains("gzip"))
        });
        Ok(if accepts_gzip {
            let coding = [(header::CONTENT_ENCODING, "gzip")];
            (HEADERS, tag, kind, coding, encoded.gzip.clone()).into_response()
        } else {
            (HEADERS, tag, kind, self.content).into_response()
        })
    }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The path of a built file in this repository.
macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!("../../../../web/dist/", $name))
    };
}

/// The results of an experiment in this repository.
macro_rules! results {
    ($name:literal) => {
        File::results(
            concat!("/experiments/", $name),
            include_bytes!(concat!("../../../../docs/experiments/", $name)),
        )
    };
}

/// All files. The page names those of the experiments in `web/src/pages/experiments.tsx`.
static FILES: [File; 12] = [
    File::new("/", HTML, built!("index.html")),
    File::new("/dashboard.js", SCRIPT, built!("dashboard.js")),
    File::new("/dashboard.css", STYLE, built!("dashboard.css")),
    File::new("/favicon.svg", SVG, built!("favicon.svg")),
    results!("6.1.csv"),
    results!("6.10.csv"),
    results!("6.15.csv"),
    results!("A.1.csv"),
    results!("A.2.csv"),
    results!("A.3.csv"),
    results!("bursts.csv"),
    results!("hidden-interference.csv"),
];

/// Returns the routes of the files.
pub(super) fn routes() -> Router {
    FILES.iter().fold(Router::new(), |routes, file| {
        let handler = get(async |headers: HeaderMap| file.response(&headers));
        routes.route(file.path, handler)
    })
}
