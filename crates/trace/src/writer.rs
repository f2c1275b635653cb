//! The events of a trace, as JSON.

use std::time::Duration;

use bytes::Bytes;
use packhorse_cluster::Time;
use serde_json::{Value, json};

/// The size from which on the written text is handed over, in bytes.
const PIECE: usize = 64 << 10;

/// A slice: its thread, its begin and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) pid: usize,
    pub(crate) tid: usize,
    pub(crate) begin: Time,
    pub(crate) end: Time,
}

/// Writes the events of a trace.
pub(crate) struct TraceWriter<S> {
    text: String,
    /// False once nobody reads any more.
    open: bool,
    first: bool,
    begin: Time,
    send: S,
}

impl<S: FnMut(Bytes) -> bool> TraceWriter<S> {
    /// Begins a trace whose times count from `begin`.
    pub(crate) fn new(begin: Time, other: &Value, send: S) -> Self {
        let mut text = String::with_capacity(2 * PIECE);
        let other = other.to_string();
        text.extend([
            "{\"displayTimeUnit\":\"ms\",\"otherData\":",
            &other,
            ",\"traceEvents\":[",
        ]);
        Self {
            text,
            open: true,
            first: true,
            begin,
            send,
        }
    }

    /// Ends the trace.
    pub(crate) fn finish(mut self) {
        self.text.push_str("\n]}\n");
        self.flush(0);
    }

    /// Writes the value of a counter from a time on.
    pub(crate) fn counter(&mut self, pid: usize, name: &str, at: Time, args: &Value) {
        let ts = self.micros(at);
        self.event(&json!({"ph": "C", "name": name, "pid": pid, "ts": ts, "args": args}));
    }

    /// Writes an arrow from a time in a slice to a time in another one.
    pub(crate) fn arrow(
        &mut self,
        id: u64,
        name: &str,
        (from, leaves): (Slice, Time),
        (to, arrives): (Slice, Time),
    ) {
        let (ts, Slice { pid, tid, .. }) = (self.micros(leaves), from);
        self.event(&json!({"ph": "s", "name": name, "cat": name, "id": id, "pid": pid, "tid": tid, "ts": ts}));
        let (ts, Slice { pid, tid, .. }) = (self.micros(arrives), to);
        self.event(&json!({"ph": "f", "bp": "e", "name": name, "cat": name, "id": id, "pid": pid, "tid": tid, "ts": ts}));
    }

    /// Returns a time in microseconds since the begin of the trace; negative before it.
    fn micros(&self, time: Time) -> f64 {
        (time.as_nanos() as f64 - self.begin.as_nanos() as f64) / 1e3
    }

    fn event(&mut self, event: &Value) {
        self.text.push_str(if self.first { "\n" } else { ",\n" });
        self.first = false;
        self.text.push_str(&event.to_string());
        self.flush(PIECE);
    }

    /// Hands the text over if it is at least this long.
    fn flush(&mut self, least: usize) {
        if self.text.len() < least {
            return;
        }
        let text = std::mem::replace(&mut self.text, String::with_capacity(2 * PIECE));
        if self.open {
            self.open = (self.send)(text.into());
        }
    }

    pub(crate) fn slice(&mut self, slice: Slice, name: &str, args: &Value) {
        let ts = self.micros(slice.begin);
        let dur = slice.end.saturating_since(slice.begin).as_nanos() as f64 / 1e3;
        let Slice { pid, tid, .. } = slice;
        self.event(&json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}));
    }

    /// Writes the parts of a slice one after the other, as far as they fit into it.
    pub(crate) fn parts(&mut self, whole: Slice, parts: &[(&str, Duration)]) {
        let mut begin = whole.begin;
        for (name, length) in parts {
            let end = (begin + *length).min(whole.end);
            if begin < end {
                self.slice(
                    Slice {
                        begin,
                        end,
                        ..whole
                    },
                    name,
                    &json!({}),
                );
            }
            begin = end;
        }
    }

    pub(crate) fn name_process(&mut self, pid: usize, name: &str) {
        let args = json!({"name": name});
        self.event(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": args}));
        let args = json!({"sort_index": pid});
        self.event(&json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": args}));
    }

    pub(crate) fn name_thread(&mut self, pid: usize, tid: usize, name: &str) {
        let args = json!({"name": name});
        self.event(
            &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}),
        );
    }
}
