//! The receiving half of a connection to a worker.
//!
//! The runtime of HTTP reads results, because the thread that reads one can then also send the answer; a thread of the link's own would have
//! to wake another for that. Results would wait where HTTP keeps its threads busy: a task on the links' own threads therefore looks again and
//! again while the worker has batches, and reads what was left. While nothing is left it looks more and more seldom, because each look
//! wakes a core that may be idle.

use std::{
    future::poll_fn,
    io::PipeReader,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{io::AsyncRead, net::unix::pipe, runtime::Handle, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    connection_error::ConnectionError, directions::ReadNow, link_event::LinkEvent,
    message_reader::MessageReader, outgoing::Sending,
};

/// The time after which the links' threads look for results that those of HTTP have not read. It doubles with each look that finds none.
const PATIENCE: Duration = Duration::from_millis(1);
/// The longest such time.
const MAX_PATIENCE: Duration = Duration::from_millis(8);

/// The receiving half of a connection, whichever thread reads it.
pub(super) struct Incoming<F> {
    sending: Arc<Sending>,
    /// `None` once nothing more is reported.
    reader: Mutex<Option<MessageReader>>,
    report: F,
}

/// Ends a connection's reports when it is dropped: what is reported after it is of the next connection.
struct EndOfReports<'a, F>(&'a Incoming<F>);

impl<F: Fn(LinkEvent) + Send + Sync + 'static> Incoming<F> {
    pub(super) fn new(reader: MessageReader, sending: Arc<Sending>, report: F) -> Arc<Self> {
        Arc::new(Self {
            sending,
            reader: Mutex::new(Some(reader)),
            report,
        })
    }

    /// Reads and reports the worker's messages from a stream until it ends.
    pub(super) async fn receive(&self, mut stream: impl AsyncRead + Unpin) -> ConnectionError {
        poll_fn(|context| self.poll(context, Pin::new(&mut stream))).await
    }

    /// Does the same in clear text on the runtime of HTTP, and here for what that leaves.
    pub(super) async fn receive_quickly(
        self: Arc<Self>,
        http: &Handle,
        from_worker: &PipeReader,
    ) -> ConnectionError {
        let _end = EndOfReports(&self);
        let second = match from_worker.try_clone() {
            Ok(second) => second,
            Err(error) => return error.into(),
        };
        let incoming = Arc::clone(&self);
        let reading = http.spawn(async move {
            // A stream of the runtime would listen for room as well, which a socket has anew whenever the worker reads a batch.
            match pipe::Receiver::from_owned_fd_unchecked(second.into()) {
                Ok(stream) => incoming.receive(stream).await,
                Err(error) => error.into(),
            }
        });
        tokio::select! {
            // A task that panics does so in the driver, which ends by it.
            ended = AbortOnDropHandle::new(reading) => ended.unwrap_or(ConnectionError::Closed),
            error = self.receive_what_is_left(from_worker) => error,
        }
    }

    async fn receive_what_is_left(&self, from_worker: &PipeReader) -> ConnectionError {
        let mut seen = 0;
        let mut patience = PATIENCE;
        loop {
            self.sending.outstanding.wait_for_batch(&mut seen).await;
            sleep(patience).await;
            patience = MAX_PATIENCE.min(2 * patience);
            let reader = match self.reader.try_lock() {
                Ok(reader) => reader,
                // Another thread reads.
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Poisoned(_)) => return ConnectionError::Closed,
            };
            let mut context = Context::from_waker(Waker::noop());
            let mut stream = ReadNow::new(from_worker);
            if let Poll::Ready(error) = self.poll_with(reader, &mut context, Pin::new(&mut stream))
            {
                return error;
            }
            if stream.has_read {
                patience = PATIENCE;
            }
        }
    }

    /// Reports what can be read.
    fn poll<R: AsyncRead>(
        &self,
        context: &mut Context<'_>,
        stream: Pin<&mut R>,
    ) -> Poll<ConnectionError> {
        self.poll_with(self.lock(), context, stream)
    }

    fn poll_with<R: AsyncRead>(
        &self,
        mut reader: MutexGuard<'_, Option<MessageReader>>,
        context: &mut Context<'_>,
        mut stream: Pin<&mut R>,
    ) -> Poll<ConnectionError> {
        let Some(reader) = &mut *reader else {
            return Poll::Ready(ConnectionError::Closed);
        };
        loop {
            match ready!(reader.poll_event(context, stream.as_mut(), &self.sending)) {
                Ok(event) => (self.report)(event),
                Err(error) => return Poll::Ready(error),
            }
        }
    }
}

impl<F> Incoming<F> {
    fn lock(&self) -> MutexGuard<'_, Option<MessageReader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Drop for EndOfReports<'_, F> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, PipeWriter, Write as _},
        thread,
    };

    use packhorse_cluster::{Datatype, Program, Shape};
    use packhorse_wire::{
        BatchHeader, BatchId, FailureKind, MAX_PAYLOAD, ResultHeader, StageDurations, TensorHeader,
        ToGateway,
    };
    use tokio::{runtime, sync::mpsc, time::timeout};

    use super::*;
    use crate::{
        test_programs::program_to,
        workers::{
            directions::Directions,
            outgoing::{BatchSender, OutgoingBatch},
        },
    };

    const LIMIT: Duration = Duration::from_secs(20);

    type Report = Box<dyn Fn(LinkEvent) + Send + Sync>;

    /// The receiving half of a connection, the events that it reports, and the worker's end.
    type Connected = (
        Arc<Incoming<Report>>,
        PipeReader,
        mpsc::UnboundedReceiver<LinkEvent>,
        PipeWriter,
    );

    /// Connects to a worker that has so many batches in flight.
    fn connected(batches: u64) -> Connected {
        connected_to(program_to(0, &[-1]), batches)
    }

    /// Connects to a worker with this program.
    fn connected_to(program: Program, batches: u64) -> Connected {
        let (from_worker, worker) = io::pipe().unwrap();
        let (_batches, to_worker) = io::pipe().unwrap();
        let directions = Directions::of_pipes(from_worker, to_worker).unwrap();
        let to_worker = Some(directions.to_worker);
        let program = Arc::new(program);
        let (mut sender, sending, _queue) = BatchSender::new(program, 100, None, to_worker);
        for id in 0..batches {
            sender.send(OutgoingBatch {
                header: BatchHeader {
                    id: BatchId(id),
                    rows: 1,
                    inputs: Vec::new(),
                },
                payload: Vec::new(),
            });
        }
        let (report, events) = mpsc::unbounded_channel();
        let report: Report = Box::new(move |event| report.send(event).unwrap());
        let incoming = Incoming::new(MessageReader::new(MAX_PAYLOAD), sending, report);
        (incoming, directions.from_worker, events, worker)
    }

    /// Returns the message with the result of a batch, an output of so many bytes.
    fn result(id: u64, bytes: usize) -> Vec<u8> {
        let shape = Shape::new(&[bytes.try_into().unwrap()]).unwrap();
        let mut message = Vec::new();
        ToGateway::Result(ResultHeader {
            id: BatchId(id),
            outputs: vec![TensorHeader::new(Datatype::Uint8, shape).unwrap()],
            stages: StageDurations::default(),
        })
        .encode(&mut message);
        message.extend((0..bytes).map(|byte| byte as u8));
        message
    }

    async fn computed(events: &mut mpsc::UnboundedReceiver<LinkEvent>) -> (u64, usize) {
        match timeout(LIMIT, events.recv()).await.unwrap() {
            Some(LinkEvent::BatchComputed(result, payload)) => {
                let [payload] = &payload[..] else {
                    panic!("{} outputs", payload.len());
                };
                let mut bytes = payload.iter().enumerate();
                assert!(bytes.all(|(place, byte)| *byte == place as u8));
                (result.id.0, payload.len())
            }
            event => panic!("{event:?}"),
        }
    }

    #[tokio::test]
    async fn results_are_read_while_http_has_no_time() {
        // Nobody runs the tasks of this runtime.
        let busy = runtime::Builder::new_current_thread().enable_all().build();
        let busy = busy.unwrap();
        let (incoming, from_worker, mut events, mut worker) = connected(2);
        let receiving = async {
            worker.write_all(&result(0, 10)).unwrap();
            assert_eq!(computed(&mut events).await, (0, 10));
            // More than a pipe takes.
            let writing = thread::spawn(move || {
                worker.write_all(&result(1, 100_000)).unwrap();
                worker
            });
            assert_eq!(computed(&mut events).await, (1, 100_000));
            writing.join().unwrap()
        };
        tokio::select! {
            error = incoming.receive_quickly(busy.handle(), &from_worker) => panic!("{error}"),
            _worker = receiving => {}
        }
        busy.shutdown_background();
    }

    #[tokio::test]
    async fn http_reads_results_and_what_comes_after_the_end_is_not_reported() {
        let (incoming, from_worker, mut events, mut worker) = connected(2);
        let http = Handle::current();
        tokio::select! {
            error = Arc::clone(&incoming).receive_quickly(&http, &from_worker) => panic!("{error}"),
            read = async {
                worker.write_all(&result(0, 5)).unwrap();
                computed(&mut events).await
            } => assert_eq!(read, (0, 5)),
        }
        worker.write_all(&result(1, 5)).unwrap();
        let late = incoming.receive(ReadNow::new(&from_worker)).await;
        assert!(matches!(late, ConnectionError::Closed), "{late}");
        drop(incoming);
        assert!(timeout(LIMIT, events.recv()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_result_that_its_batch_cannot_have_is_refused_by_its_header_and_not_kept() {
        const BYTES: usize = 300_000;
        let (incoming, from_worker, mut events, mut worker) = connected_to(program_to(0, &[7]), 2);
        let look = |incoming: &Incoming<Report>| {
            let mut context = Context::from_waker(Waker::noop());
            let mut stream = ReadNow::new(&from_worker);
            assert!(
                incoming
                    .poll(&mut context, Pin::new(&mut stream))
                    .is_pending()
            );
        };
        let message = result(0, BYTES);
        let (header, payload) = message.split_at(message.len() - BYTES);
        worker.write_all(header).unwrap();
        look(&incoming);
        // Nothing of the payload has come yet.
        let LinkEvent::BatchFailed(failure) = events.recv().await.unwrap() else {
            panic!("the batch has failed")
        };
        assert_eq!((failure.id.0, failure.kind), (0, FailureKind::WrongOutput));
        assert_eq!(
            failure.message,
            "output \"y\": the model answered UINT8 [300000], but declares UINT8 [7]"
        );
        for piece in payload.chunks(9_000) {
            worker.write_all(piece).unwrap();
            look(&incoming);
        }
        // The connection goes on.
        worker.write_all(&result(1, 7)).unwrap();
        look(&incoming);
        assert_eq!(computed(&mut events).await, (1, 7));
        assert!(incoming.sending.outstanding.oldest_sent().is_none());
    }

    #[tokio::test]
    async fn a_thread_goes_on_with_what_another_has_begun_to_read() {
        let (incoming, from_worker, mut events, mut worker) = connected(1);
        let message = result(0, 50_000);
        let outstanding = &incoming.sending.outstanding;
        for piece in message.chunks(9_000) {
            assert!(outstanding.oldest_sent().is_some());
            worker.write_all(piece).unwrap();
            let mut context = Context::from_waker(Waker::noop());
            let mut stream = ReadNow::new(&from_worker);
            assert!(
                incoming
                    .poll(&mut context, Pin::new(&mut stream))
                    .is_pending()
            );
        }
        assert_eq!(computed(&mut events).await, (0, 50_000));
        assert!(outstanding.oldest_sent().is_none());
        drop(worker);
        let ended = incoming.receive(ReadNow::new(&from_worker)).await;
        assert!(matches!(ended, ConnectionError::Closed), "{ended}");
    }
}
