//! A limit on the frames of HTTP/2 that a client sends without asking for anything by them.
//!
//! Whatever a peer sends, the HTTP/2 library reads, and answers PING and SETTINGS: it bounds resets, continuations and small frames of data, but not
//! those. A client that floods its connection would have a core work for it. What requests and answers explain is not limited: each part of a request
//! may have a few such frames follow, and so may each part of an answer, for which its client makes room again.

use std::{io, time::Duration};

use tokio::time::Instant;

/// The bytes that a client sends before its first frame.
const PREFACE: usize = 24;
/// The bytes of the head of a frame.
const HEAD: usize = 9;

/// The kinds of frames that are told apart.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

/// The most such frames at once that nothing explains.
const MOST: u64 = 4000;
/// The most such frames per second that nothing explains.
const PER_SECOND: u64 = 1000;
/// The frames that a part of a request explains: room for its answer on stream and connection, a PING, and one more.
const BY_REQUEST: u64 = 4;
/// The frames as which a reset counts: one more than its request explains.
const RESET: u64 = BY_REQUEST + 1;
/// The bytes of such a frame that count as a frame.
const FRAME_BYTES: u64 = 64;
/// The bytes of answers that explain a frame.
const ANSWER_BYTES: u64 = 4 << 10;
/// The time after which frames are allowed again.
const STEP: Duration = Duration::from_millis(10);

/// The frames that a client still may send.
#[derive(Debug)]
pub(super) struct ControlFrames {
    /// The bytes until the next head.
    skipped: usize,
    /// The beginning of a head.
    head: [u8; HEAD],
    known: usize,
    /// The frames that it may send now.
    allowed: u64,
    /// The time at which they were last increased for the time.
    increased: Instant,
    /// The bytes of answers that do not explain a frame yet.
    answered: u64,
}

impl ControlFrames {
    /// Creates the limit of a connection that begins.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            skipped: PREFACE,
            head: [0; HEAD],
            known: 0,
            allowed: MOST,
            increased: now,
            answered: 0,
        }
    }

    /// Counts bytes of answers that were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.answered += bytes as u64;
        self.allow(self.answered / ANSWER_BYTES);
        self.answered %= ANSWER_BYTES;
    }

    /// Counts bytes that came, whatever frames they are of.
    ///
    /// # Errors
    /// The client has sent too many frames.
    pub(super) fn received(&mut self, mut bytes: &[u8], now: Instant) -> io::Result<()> {
        let passed = now.saturating_duration_since(self.increased);
        if passed >= STEP {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(MOST);
            self.allow(millis.saturating_mul(PER_SECOND) / 1000);
            self.increased = now;
        }
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.known).min(bytes.len());
            if self.skipped > 0 {
                break;
            }
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEAD {
                self.known = 0;
                self.count()?;
            }
        }
        Ok(())
    }

    /// Counts the frame whose head is complete.
    fn count(&mut self) -> io::Result<()> {
        let [a, b, c, kind, ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.skipped = length as usize;
        let weight = match kind {
            DATA | HEADERS if length > 0 => {
                self.allow(BY_REQUEST);
                return Ok(());
            }
            RST_STREAM => RESET,
            _ => 1 + u64::from(length) / FRAME_BYTES,
        };
        let too_many = "the client sent too many frames that are no requests";
        self.allowed = self
            .allowed
            .checked_sub(weight)
            .ok_or_else(|| io::Error::other(too_many))?;
        Ok(())
    }

    fn allow(&mut self, frames: u64) {
        self.allowed = self.allowed.saturating_add(frames).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let [_, length @ ..] = u32::try_from(payload).unwrap().to_be_bytes();
        let head = [&length[..], &[kind, 0, 0, 0, 0, 1]].concat();
        [head, vec![0xff; payload]].concat()
    }

    /// A connection whose preface has come.
    fn begun(now: Instant) -> ControlFrames {
        let mut frames = ControlFrames::new(now);
        frames.received(&[0; PREFACE], now).unwrap();
        frames
    }

    /// Returns the number of times that bytes can come at once.
    fn times(bytes: &[u8], most: usize) -> usize {
        let now = Instant::now();
        let mut frames = begun(now);
        let accepted = (0..most).take_while(|_| frames.received(bytes, now).is_ok());
        accepted.count()
    }

    #[tokio::test]
    async fn floods_end_and_requests_go_on() {
        let most = MOST as usize;
        assert_eq!(times(&frame(PING, 8), 100_000), most);
        assert_eq!(times(&frame(WINDOW_UPDATE, 4), 100_000), most);
        assert_eq!(times(&frame(SETTINGS, 0), 100_000), most);
        assert_eq!(times(&frame(0xee, 0), 100_000), most);
        assert_eq!(times(&frame(DATA, 0), 100_000), most);
        // Long ones count as several.
        assert!(times(&frame(SETTINGS, 6 * 1000), 100_000) < most / 90);
        let reset = [frame(HEADERS, 50), frame(RST_STREAM, 4)].concat();
        assert!((most / 2..=2 * most).contains(&times(&reset, 100_000)));
        let call = [
            frame(HEADERS, 50),
            frame(DATA, 100),
            frame(WINDOW_UPDATE, 4),
            frame(WINDOW_UPDATE, 4),
            frame(PING, 8),
            frame(RST_STREAM, 4),
        ];
        assert_eq!(times(&call.concat(), 100_000), 100_000);
        assert_eq!(times(&frame(DATA, 64 << 10), 10_000), 10_000);
    }

    #[tokio::test]
    async fn time_and_answers_allow_more() {
        let mut now = Instant::now();
        let mut frames = begun(now);
        let pings = frame(PING, 8).repeat(MOST as usize);
        frames.received(&pings, now).unwrap();
        now += Duration::from_secs(1);
        let second = frame(PING, 8).repeat(PER_SECOND as usize);
        frames.received(&second, now).unwrap();
        assert!(frames.received(&frame(PING, 8), now).is_err());
        let mut frames = begun(now);
        frames.received(&pings, now).unwrap();
        for _ in 0..10 {
            frames.sent(1 << 20);
            let room = frame(WINDOW_UPDATE, 4).repeat(2 * 64);
            frames.received(&room, now).unwrap();
        }
    }

    #[tokio::test]
    async fn frames_are_found_wherever_the_bytes_are_cut() {
        let now = Instant::now();
        let kinds = [(PING, 8), (DATA, 300), (WINDOW_UPDATE, 4), (SETTINGS, 0)];
        let frames = kinds.map(|(kind, length)| frame(kind, length)).concat();
        let bytes = [vec![0; PREFACE], frames.repeat(50)].concat();
        let left = |size: usize| {
            let mut frames = ControlFrames::new(now);
            frames.allowed = 1000;
            for piece in bytes.chunks(size) {
                frames.received(piece, now).unwrap();
            }
            (frames.allowed, frames.skipped, frames.known)
        };
        assert_eq!(left(usize::MAX), (1000 - 3 * 50 + 4 * 50, 0, 0));
        for size in [1, 2, 8, 9, 10, 23, 24, 25, 4096] {
            assert_eq!(left(size), left(usize::MAX), "{size}");
        }
    }
}
