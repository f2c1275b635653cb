//! The owner of the gateway's long-lived tasks.
//!
//! A task that nobody watches can end by a panic and leave a gateway that is ready and does a part of its work never again: registrations
//! wait for a writer that is gone, certificates expire. So every task that lives as long as the gateway is started here, under a name, and
//! its end before the gateway stops ends the process. Tasks that end with a piece of work are their makers' own; a test lists them.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A handle to the owner of the tasks. Clones share it.
#[derive(Clone, Debug)]
pub struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The name of the first task that has ended while the gateway was not stopping.
    failed: watch::Sender<Option<&'static str>>,
    stopping: CancellationToken,
    #[cfg(test)]
    planted: planted::Panics,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                failed: watch::Sender::new(None),
                stopping: CancellationToken::new(),
                #[cfg(test)]
                planted: planted::Panics::default(),
            }),
        }
    }
}

impl Tasks {
    /// Starts a task that lives as long as the gateway. Must be called in the runtime.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let end = NoteEnd {
            name,
            shared: Arc::clone(&self.shared),
        };
        #[cfg(test)]
        let task = self.shared.planted.within(name, task);
        tokio::spawn(async move {
            let _end = end;
            task.await;
        })
    }

    /// Says that tasks may end from now on.
    pub(crate) fn begin_to_stop(&self) {
        self.shared.stopping.cancel();
    }

    /// Waits until tasks may end: for one whose work ends with that of another, so that the other is told.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.stopping.clone().cancelled_owned()
    }

    /// Waits until a task has ended although the gateway was not stopping, and returns its name.
    pub async fn failed(&self) -> &'static str {
        let mut failed = self.shared.failed.subscribe();
        let name = failed.wait_for(Option::is_some).await;
        name.ok()
            .and_then(|name| *name)
            .expect("the sender is a part of this, and the name is there")
    }

    /// Returns the names of the tasks that have been started.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.shared.planted.names()
    }

    /// Has a task panic.
    #[cfg(test)]
    pub(crate) fn plant_panic(&self, name: &'static str) {
        self.shared.planted.plant(name);
    }
}

/// Notes the end of a task, whichever way it ends, when this is dropped.
struct NoteEnd {
    name: &'static str,
    shared: Arc<Shared>,
}

impl Drop for NoteEnd {
    fn drop(&mut self) {
        if self.shared.stopping.is_cancelled() {
            return;
        }
        self.shared.failed.send_if_modified(|failed| {
            let is_first = failed.is_none();
            failed.get_or_insert(self.name);
            is_first
        });
    }
}

/// Panics that a test plants in tasks.
#[cfg(test)]
mod planted {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use tokio::sync::Notify;

    #[derive(Debug, Default)]
    pub(super) struct Panics(Mutex<BTreeMap<&'static str, Arc<Notify>>>);

    impl Panics {
        /// Returns the task, which panics once that is planted.
        pub(super) fn within<F: Future<Output = ()>>(
            &self,
            name: &'static str,
            task: F,
        ) -> impl Future<Output = ()> + use<F> {
            let mut panics = self.0.lock().unwrap();
            let planted = Arc::clone(panics.entry(name).or_default());
            async move {
                tokio::select! {
                    () = task => {}
                    () = planted.notified() => panic!("a test has planted this panic"),
                }
            }
        }

        pub(super) fn names(&self) -> Vec<&'static str> {
            self.0.lock().unwrap().keys().copied().collect()
        }

        pub(super) fn plant(&self, name: &'static str) {
            let panics = self.0.lock().unwrap();
            panics[name].notify_waiters();
            panics[name].notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        future::{pending, ready},
        path::Path,
    };

    use super::*;

    /// The places that start tasks of their own, the number of them, and the reason why nobody needs to watch them.
    const OWN_TASKS: [(&str, usize, &str); 14] = [
        (
            "api/grpc/health.rs",
            1,
            "one stream; its answer ends with it",
        ),
        (
            "api/grpc/reflection.rs",
            1,
            "one stream; its answer tells of its panic",
        ),
        (
            "api/grpc/stream.rs",
            1,
            "one stream; its answer tells of its panic",
        ),
        (
            "api/inference/body.rs",
            1,
            "the rest of one body, within a time",
        ),
        (
            "api/inference/work_pool.rs",
            1,
            "the threads that parse; a job's panic reaches its request",
        ),
        (
            "controller/task.rs",
            4,
            "one solve, sizing, sample or search for cures; the control plane learns of its panic, or ends by the same",
        ),
        ("serve/overflow.rs", 1, "one connection, within a time"),
        ("serve/server.rs", 1, "one connection"),
        ("tasks.rs", 1, "the owner's own"),
        ("wake_latency.rs", 1, "a limit that ends with the requests"),
        ("workers/incoming.rs", 1, "one batch's reading"),
        (
            "workers/link.rs",
            1,
            "one link; its driver learns of its end",
        ),
        ("driver/data_plane.rs", 1, "a test's"),
        (
            "driver/threads.rs",
            1,
            "the drivers' threads, whose end the driver notes",
        ),
    ];

    #[tokio::test]
    async fn a_task_that_ends_is_told_by_name_and_only_before_the_gateway_stops() {
        let tasks = Tasks::default();
        tasks.spawn("lasting", pending());
        tasks.spawn("short", ready(()));
        assert_eq!(tasks.failed().await, "short");

        let tasks = Tasks::default();
        tasks.spawn("lasting", pending());
        tasks.plant_panic("lasting");
        assert_eq!(tasks.failed().await, "lasting");

        let tasks = Tasks::default();
        tasks.begin_to_stop();
        tasks.spawn("short", ready(())).await.unwrap();
        assert_eq!(*tasks.shared.failed.borrow(), None);
    }

    #[test]
    fn every_long_lived_task_has_this_owner() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = BTreeMap::new();
        count(&source, &source, &mut found);
        let listed: BTreeMap<String, usize> = OWN_TASKS
            .iter()
            .map(|(file, count, _)| ((*file).to_owned(), *count))
            .collect();
        assert_eq!(
            found, listed,
            "start a task that lives as long as the gateway with Tasks::spawn, or add one that ends with its work to this list"
        );
    }

    /// Counts the places of each file that start a task or thread, without those of tests and those on the threads for blocking work, whose
    /// results are awaited.
    fn count(folder: &Path, root: &Path, found: &mut BTreeMap<String, usize>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                count(&path, root, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let starts = ["tokio::spawn(", "thread::spawn(", ".spawn("].iter();
            let starts: usize = starts.map(|start| text.matches(start).count()).sum();
            let owned = text.matches("tasks.spawn(").count();
            if starts > owned && !path.ends_with("tests.rs") {
                let file = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(file, starts - owned);
            }
        }
    }
}
