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
        let shim = compile_shim(lib.parent().expect("libtorch's lib folder has a parent"));
        link(&lib, &shim);
    }

    /// Where the archive is.
    fn compile_shim(torch: &Path) -> PathBuf {
        println!("cargo:rerun-if-changed=csrc");
        let mut compiler = cc::Build::new();
        compiler
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .include(torch.join("include"))
            .include(torch.join("include/torch/csrc/api/include"))
            .files([
                "csrc/shim.cpp",
                "csrc/lane.cpp",
                "csrc/graph.cpp",
                "csrc/kineto.cpp",
            ])
            // Cargo would give it to the library, which the agent uses too.
            .cargo_metadata(false);
        // Beside libtorch in the virtual environment. What else a header of CUDA includes is a package of its own, without
        // which none of them compiles.
        let cuda = torch.join("../nvidia/cu13/include");
        if torch.join("lib/libtorch_cuda.so").exists() && cuda.join("crt/host_defines.h").exists() {
            compiler
                .include(cuda)
                .define("PACKHORSE_CUDA_HEADERS", None);
        } else {
            println!("cargo:warning=without headers of CUDA, workers record no CUDA graphs");
        }
        compiler.compile("packhorse_shim");
        let out = std::env::var_os("OUT_DIR").expect("cargo says where to build");
        Path::new(&out).join("libpackhorse_shim.a")
    }

    fn link(lib: &Path, shim: &Path) {
        let arg = |arg: &str| println!("cargo:rustc-link-arg-bin=packhorse-worker={arg}");
        arg(&shim.display().to_string());
        arg(&format!("-L{}", lib.display()));
        // Programs that are to run elsewhere are told by their launcher where libtorch is.
        println!("cargo:rerun-if-env-changed=PACKHORSE_RPATH");
        if std::env::var_os("PACKHORSE_RPATH").is_none_or(|rpath| rpath != "off") {
            arg(&format!("-Wl,-rpath,{}", lib.display()));
        }
        // Operators register themselves when their library is loaded. No symbol of libtorch_cuda is ever named, so that the
        // linker would leave it out, and with it every GPU.
        let mut libraries = vec!["torch", "torch_cpu", "c10", "stdc++"];
        if lib.join("libtorch_cuda.so").exists() {
            libraries.extend(["torch_cuda", "c10_cuda"]);
        }
        arg("-Wl,--no-as-needed");
        for library in libraries {
            arg(&format!("-l{library}"));
        }
        arg("-Wl,--as-needed");
    }
}
