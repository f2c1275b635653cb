//! The process interface of a worker besides its folder: environment variables and exit codes.

/// The exit codes of a worker process. Any other end (1, 2, 101, a signal) is a crash or a wrong command line.
pub mod exit_code {
    /// The worker drained after SIGTERM, or completed its measurement.
    pub const DONE: u8 = 0;
    /// The worker failed. Its status gives the reason, and whether a restart could help.
    pub const FAILED: u8 = 10;
    /// A batch exceeded its time limit. The worker answered it, and the batches behind it, with a failure.
    pub const BATCH_TIMED_OUT: u8 = 11;
}

/// Returns the environment variables for a worker with `threads` CPU threads, to be added to the agent's own environment.
///
/// By default glibc returns the memory of a network's activations to the kernel after every batch, and page faults bring it back for the
/// next one: about half the time of a batch of a convolutional network on a CPU. A single arena on the heap, without separate mappings
/// and trimming, keeps the memory.
///
/// By default OpenMP's threads spin while they wait for each other, which assumes that they own their cores. Workers share cores: with
/// two spinning workers and a busy neighbour on two cores, a batch of 4 ms took 40 ms, and some took seconds.
///
/// The machine code of a package assumes the shapes of its inputs and checks them only if `AOTI_RUNTIME_CHECK_INPUTS` is set.
pub fn worker_environment(threads: u32) -> Vec<(&'static str, String)> {
    vec![
        ("MALLOC_ARENA_MAX", "1".to_owned()),
        ("MALLOC_MMAP_MAX_", "0".to_owned()),
        ("MALLOC_TRIM_THRESHOLD_", (1_u64 << 46).to_string()),
        ("MALLOC_TOP_PAD_", (16_u64 << 20).to_string()),
        ("OMP_NUM_THREADS", threads.to_string()),
        ("OMP_WAIT_POLICY", "PASSIVE".to_owned()),
        ("MKL_NUM_THREADS", threads.to_string()),
        ("AOTI_RUNTIME_CHECK_INPUTS", "1".to_owned()),
    ]
}
