//! The wheels that contain libtorch and what it loads, exactly: the versions with which the worker is built (`python/requirements.txt`).

use packhorse_service::LibtorchBuild;

/// A file of the Python package index.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The package's name.
    pub(super) package: &'static str,
    /// The name of the file.
    pub(super) file: &'static str,
    /// The SHA-256 of the file, in hexadecimal digits.
    pub(super) sha256: &'static str,
    /// The size of the file, in bytes.
    pub(super) bytes: u64,
    /// The smallest build that needs the wheel.
    first_build: LibtorchBuild,
}

#[cfg(test)]
impl Wheel {
    /// A wheel of the package `w`.
    pub(super) fn for_tests(file: &'static str, sha256: &'static str, bytes: u64) -> Self {
        Self {
            package: "w",
            file,
            sha256,
            bytes,
            first_build: LibtorchBuild::Cpu,
        }
    }
}

/// Every wheel. The index has PyTorch with CUDA only: without a GPU, its library for CPUs is used, which also loads CUDA's runtime and
/// its interface for profilers, both small.
const WHEELS: [Wheel; 15] = [
    Wheel {
        package: "torch",
        file: "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256: "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        bytes: 530_604_548,
        first_build: LibtorchBuild::Cpu,
    },
    Wheel {
        package: "nvidia-cublas",
        file: "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
        bytes: 423_133_236,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cuda-cupti",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        bytes: 10_715_597,
        first_build: LibtorchBuild::Cpu,
    },
    Wheel {
        package: "nvidia-cuda-nvrtc",
        file: "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        bytes: 90_215_200,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cuda-runtime",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        bytes: 2_243_632,
        first_build: LibtorchBuild::Cpu,
    },
    Wheel {
        package: "nvidia-cudnn-cu13",
        file: "nvidia_cudnn_cu13-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
        bytes: 366_066_321,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cufft",
        file: "nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
        bytes: 214_085_489,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cufile",
        file: "nvidia_cufile-1.15.1.6-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
        bytes: 1_223_672,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-curand",
        file: "nvidia_curand-10.4.0.35-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
        bytes: 59_544_258,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cusolver",
        file: "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
        bytes: 200_941_980,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cusparse",
        file: "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
        bytes: 145_942_937,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-cusparselt-cu13",
        file: "nvidia_cusparselt_cu13-0.8.0-py3-none-manylinux2014_x86_64.whl",
        sha256: "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
        bytes: 169_884_119,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-nccl-cu13",
        file: "nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl",
        sha256: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
        bytes: 196_493_177,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-nvjitlink",
        file: "nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
        bytes: 40_713_933,
        first_build: LibtorchBuild::Cuda,
    },
    Wheel {
        package: "nvidia-nvshmem-cu13",
        file: "nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
        bytes: 60_412_546,
        first_build: LibtorchBuild::Cuda,
    },
];

/// Returns the wheels of a build.
pub(super) fn of(build: LibtorchBuild) -> impl Iterator<Item = &'static Wheel> {
    WHEELS
        .iter()
        .filter(move |wheel| build == LibtorchBuild::Cuda || wheel.first_build == build)
}

/// Returns true if this build loads a file of a wheel, by the file's path in it.
pub(super) fn is_loaded(build: LibtorchBuild, path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else {
        return false;
    };
    let is_library = name.contains(".so") && folder.ends_with("/lib");
    let for_python = name.starts_with("libtorch_python") || name.starts_with("libshm");
    let for_gpus = folder == "torch/lib"
        && (name == "libtorch.so" || name.contains("cuda") || name.contains("nv"));
    is_library && !for_python && (build == LibtorchBuild::Cuda || !for_gpus)
}

#[cfg(test)]
mod tests {
    use packhorse_service::LIBTORCH_VERSION;

    use super::*;

    #[test]
    fn the_wheels_are_those_that_the_worker_is_built_with() {
        let lock = include_str!("../../../../../python/requirements.txt");
        for wheel in &WHEELS {
            let (name, rest) = wheel.file.split_once('-').unwrap();
            assert_eq!(name.replace('_', "-"), wheel.package);
            let version = rest.split('-').next().unwrap();
            let line = format!("{}=={version}", wheel.package);
            assert!(lock.lines().any(|locked| locked == line), "{line}");
            assert_eq!(wheel.sha256.len(), 64);
        }
        let torch = format!("torch-{LIBTORCH_VERSION}-");
        assert!(of(LibtorchBuild::Cpu).any(|wheel| wheel.file.starts_with(&torch)));
    }

    #[test]
    fn a_cpu_needs_few_of_the_files() {
        for (path, cpu, cuda) in [
            ("torch/lib/libtorch_cpu.so", true, true),
            ("torch/lib/libc10.so", true, true),
            ("torch/lib/libgomp.so.1", true, true),
            ("nvidia/cu13/lib/libcupti.so.13", true, true),
            ("nvidia/cudnn/lib/libcudnn.so.9", true, true),
            ("torch/lib/libtorch.so", false, true),
            ("torch/lib/libtorch_cuda.so", false, true),
            ("torch/lib/libc10_cuda.so", false, true),
            ("torch/lib/libtorch_nvshmem.so", false, true),
            ("torch/lib/libtorch_python.so", false, false),
            ("torch/_C.cpython-311-x86_64-linux-gnu.so", false, false),
            ("torch/include/ATen/ATen.h", false, false),
        ] {
            assert_eq!(is_loaded(LibtorchBuild::Cpu, path), cpu, "{path}");
            assert_eq!(is_loaded(LibtorchBuild::Cuda, path), cuda, "{path}");
        }
    }
}
