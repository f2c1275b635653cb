//! The environment of the programs that the agent starts: workers and MPS daemons.

use std::{env, ffi::OsString};

use packhorse_service::Libtorch;

/// The environment variable of the loader with folders of libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Returns the agent's environment variables without those that a model has no use for: they may hold secrets.
pub(super) fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_inherited))
}

/// Returns true for the environment variables of the system, of NVIDIA's and the compute libraries, and for the trace of a panic.
fn is_inherited(name: &str) -> bool {
    const NAMES: [&str; 5] = ["PATH", "LANG", "TZ", "TZDIR", "HOME"];
    const PREFIXES: [&str; 21] = [
        "LC_",
        "LD_",
        "CUDA",
        "NVIDIA_",
        "NCCL_",
        "CUBLAS",
        "CUDNN",
        "TORCH",
        "PYTORCH",
        "ATEN_",
        "AOTI_",
        "OMP_",
        "KMP_",
        "GOMP_",
        "MKL_",
        "DNNL_",
        "ONEDNN_",
        "OPENBLAS_",
        "MALLOC_",
        "GLIBC_",
        "RUST_",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the environment variable by which the loader finds libtorch, before the folder with which the worker was linked.
pub(super) fn library_path(libtorch: Option<&Libtorch>) -> Option<(&'static str, OsString)> {
    let mut folders = libtorch?.libraries().into_os_string();
    if let Some(given) = env::var_os(LIBRARY_PATH) {
        folders.push(":");
        folders.push(given);
    }
    Some((LIBRARY_PATH, folders))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_inherit_nothing_that_may_be_a_secret() {
        for name in [
            "PATH",
            "LC_ALL",
            "LD_LIBRARY_PATH",
            "CUDA_CACHE_PATH",
            "OMP_NUM_THREADS",
        ] {
            assert!(is_inherited(name), "{name}");
        }
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "PACKHORSE_TOKEN_FILE",
            "GITHUB_TOKEN",
            "SSH_AUTH_SOCK",
        ] {
            assert!(!is_inherited(name), "{name}");
        }
    }
}
