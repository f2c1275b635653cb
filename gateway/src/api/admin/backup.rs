//! `/v1/backup`: a backup of everything that the gateway must not forget.

use std::{io, sync::Arc};

use axum::{Extension, body::Body, extract::State, http::header, response::IntoResponse};
use bytes::Bytes;
use futures_util::stream;
use packhorse_api::{AuditActor, ErrorBody};
use tokio::sync::mpsc;

use super::{Admin, NO_STORE};
use crate::{api::error::ApiError, audit::Act};

/// The number of bytes that are sent at a time.
const CHUNK: usize = 256 << 10;
/// The number of chunks that wait for the client.
const CHUNKS: usize = 4;

/// Returns a backup as a tar archive: the database, the model files and, if they are in the state folder, the tokens. The gateway works on
/// meanwhile. `packhorse restore` makes a state folder of it.
#[utoipa::path(
    get, path = "/v1/backup", tag = "backup", security(("admin" = [])),
    responses(
        (status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 501, description = "The database is PostgreSQL's, whose own tools back it up", body = ErrorBody),
        (status = 503, description = "Another backup is being made", body = ErrorBody),
        (status = 507, description = "The gateway's disk is full", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn download(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
) -> Result<impl IntoResponse, ApiError> {
    let snapshot = admin.artifacts.snapshot().await?;
    let act = Act::of_cluster(actor, "backup.download");
    admin.store.acting(act).record().await?;
    let tokens = Arc::clone(&admin.token_files);
    let (chunks, received) = mpsc::channel(CHUNKS);
    tokio::task::spawn_blocking(move || {
        let writer = ChunkWriter {
            chunks: chunks.clone(),
        };
        let writer = io::BufWriter::with_capacity(CHUNK, writer);
        if let Err(e) = snapshot.write_tar(&tokens, writer) {
            tracing::warn!(error = %e, "a backup was not sent to its end");
            // Ends the response before its last chunk, so that the client does not take it for complete.
            let _ = chunks.blocking_send(Err(e));
        }
    });
    let body = stream::unfold(received, async |mut received| {
        let chunk: io::Result<Bytes> = received.recv().await?;
        Some((chunk, received))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-tar"), NO_STORE];
    Ok((headers, Body::from_stream(body)))
}

/// Sends what is written to a task.
struct ChunkWriter {
    chunks: mpsc::Sender<io::Result<Bytes>>,
}

impl io::Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = Ok(Bytes::copy_from_slice(bytes));
        let sent = self.chunks.blocking_send(chunk);
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
