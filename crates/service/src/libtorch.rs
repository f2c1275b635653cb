//! The places of libtorch: that which `packhorse setup` installs, and that which a user names.

use std::path::{Path, PathBuf};

/// The version of libtorch that the worker is built with; another version does not load.
pub const LIBTORCH_VERSION: &str = "2.11.0";

/// A build of libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibtorchBuild {
    /// For CPUs.
    Cpu,
    /// For NVIDIA GPUs and CPUs.
    Cuda,
}

/// A folder with libtorch in its folder `lib`, as PyTorch's wheel and its archives have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libtorch(PathBuf);

impl LibtorchBuild {
    /// Returns the folder of the user's data folder into which `packhorse setup` installs this build.
    pub fn folder(self, data_home: &Path) -> PathBuf {
        let name = match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        };
        data_home.join(format!("packhorse-libtorch/{LIBTORCH_VERSION}-{name}"))
    }
}

impl Libtorch {
    /// Returns the libtorch in this folder, or in its folder `torch`; `None` if there is none.
    pub fn find(folder: &Path) -> Option<Self> {
        [folder.to_owned(), folder.join("torch")]
            .into_iter()
            .find(|folder| folder.join("lib/libtorch_cpu.so").is_file())
            .map(Self)
    }

    /// Returns the libtorch that `packhorse setup` has installed, the one for GPUs first; `None` if there is none.
    pub fn installed(data_home: &Path) -> Option<Self> {
        [LibtorchBuild::Cuda, LibtorchBuild::Cpu]
            .into_iter()
            .find_map(|build| Self::find(&build.folder(data_home)))
    }

    /// Returns the folder of the libraries, in which the loader shall look.
    pub fn libraries(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// Returns the build.
    pub fn build(&self) -> LibtorchBuild {
        if self.libraries().join("libtorch_cuda.so").is_file() {
            LibtorchBuild::Cuda
        } else {
            LibtorchBuild::Cpu
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_build_for_gpus_is_preferred_and_both_layouts_are_found() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Libtorch::installed(home.path()), None);
        for (build, library) in [
            (LibtorchBuild::Cpu, "libtorch_cpu.so"),
            (LibtorchBuild::Cuda, "libtorch_cuda.so"),
        ] {
            let folder = build.folder(home.path());
            let libraries = folder.join("torch/lib");
            fs::create_dir_all(&libraries).unwrap();
            fs::write(libraries.join("libtorch_cpu.so"), "").unwrap();
            fs::write(libraries.join(library), "").unwrap();
            let installed = Libtorch::installed(home.path()).unwrap();
            assert_eq!(installed.build(), build);
            assert_eq!(installed.libraries(), libraries);
            assert_eq!(Libtorch::find(&folder.join("torch")), Some(installed));
        }
    }
}
