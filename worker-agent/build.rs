//! Builds the libtorch shim and links the worker with libtorch, where the feature `torch` is on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "torch")]
    torch::build();
}

#[cfg(feature = "torch")]
mod torch {
    use std::path::{Path, PathBuf};

    pub(super) fn build() {
        // torch-sys tells where it found libtorch only to those that depend on it directly.
        let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from);
        let lib = lib.expect("torch-sys says where libtorch is");
        compile_shim(lib.parent().expect("libtorch's lib folder has a parent"));
        link(&lib);
    }

    fn compile_shim(torch: &Path) {
        println!("cargo:rerun-if-changed=csrc/shim.cpp");
        println!("cargo:rerun-if-changed=csrc/shim.h");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .include(torch.join("include"))
            .include(torch.join("include/torch/csrc/api/include"))
            .file("csrc/shim.cpp")
            .compile("packhorse_shim");
    }

    fn link(lib: &Path) {
        println!("cargo:rustc-link-search=native={}", lib.display());
        // A path alone needs nothing: the agent, which uses no symbol of libtorch, starts without it.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
        // Operators register themselves when their library is loaded. No symbol of libtorch_cuda is ever named, so that the
        // linker would leave it out, and with it every GPU.
        let mut registering = vec!["torch"];
        if lib.join("libtorch_cuda.so").exists() {
            registering.extend(["torch_cuda", "c10_cuda"]);
        }
        let arg = |arg: &str| println!("cargo:rustc-link-arg-bin=packhorse-worker={arg}");
        arg("-Wl,--no-as-needed");
        for library in registering {
            arg(&format!("-l{library}"));
        }
        arg("-Wl,--as-needed");
    }
}
