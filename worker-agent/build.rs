//! Builds the libtorch shim and links the worker with libtorch, if the feature `torch` is on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "torch")]
    torch::build();
}

#[cfg(feature = "torch")]
mod torch {
    use std::path::{Path, PathBuf};

    pub(super) fn build() {
        // torch-sys passes the path of libtorch only to packages that depend on it directly.
        let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from);
        let lib = lib.expect("torch-sys passes the path of libtorch");
        let shim = compile_shim(lib.parent().expect("libtorch's lib folder has a parent"));
        link(&lib, &shim);
    }

    /// Compiles the shim and returns the path of its archive.
    fn compile_shim(torch: &Path) -> PathBuf {
        println!("cargo:rerun-if-changed=csrc");
        let mut compiler = cc::Build::new();
        compiler
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .include(torch.join("include"))
            .include(torch.join("include/torch/csrc/api/include"))
            .file("csrc/shim.cpp")
            // libtorch is built so, and some of its classes have more members without.
            .define("NDEBUG", None)
            // Cargo would link the archive with the library, which the agent uses too.
            .cargo_metadata(false);
        // The headers are beside libtorch in the virtual environment. Those that they include are a package of their own, without which none
        // of them compiles.
        let cuda = torch.join("../nvidia/cu13/include");
        if torch.join("lib/libtorch_cuda.so").exists() && cuda.join("crt/host_defines.h").exists() {
            compiler
                .include(cuda)
                .define("PACKHORSE_CUDA_HEADERS", None);
        } else {
            println!(
                "cargo:warning=without the headers of CUDA, workers cannot record CUDA graphs"
            );
        }
        compiler.compile("packhorse_shim");
        let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
        Path::new(&out).join("libpackhorse_shim.a")
    }

    fn link(lib: &Path, shim: &Path) {
        let arg = |arg: &str| println!("cargo:rustc-link-arg-bin=packhorse-worker={arg}");
        arg(&shim.display().to_string());
        arg(&format!("-L{}", lib.display()));
        // The place of libraries in a release archive, for those who put libtorch there.
        arg("-Wl,-rpath,$ORIGIN/../lib");
        // The same place, for which `cargo xtask wheel` writes one of the same length: PyTorch beside the Python package. Elsewhere that could be
        // anybody's folder.
        arg("-Wl,-rpath,$ORIGIN/../lib/././././");
        // Programs for another machine get the path of libtorch from their launcher.
        println!("cargo:rerun-if-env-changed=PACKHORSE_RPATH");
        if std::env::var_os("PACKHORSE_RPATH").is_none_or(|rpath| rpath != "off") {
            arg(&format!("-Wl,-rpath,{}", lib.display()));
        }
        // Operators register themselves when their library is loaded. No symbol of libtorch_cuda is ever referenced, so that the linker
        // would omit it, and with it all GPUs.
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
