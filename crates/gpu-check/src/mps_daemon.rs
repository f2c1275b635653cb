//! NVIDIA's MPS.

use std::{env, path::PathBuf};

const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Where its program is, or why there is none.
pub(crate) fn find() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    places
        .find(|place| place.is_file())
        .ok_or_else(|| format!("{PROGRAM} is not on the PATH"))
}
