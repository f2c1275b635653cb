#!/bin/sh
# Builds stand-ins for NVIDIA's libraries: build.sh nvml|cuda FOLDER. The folder must be in LD_LIBRARY_PATH, and libcudart.so.13 also in
# LD_PRELOAD, because libtorch first searches its own folder.
set -eu
here=$(dirname "$0")
folder=$2
case $1 in
nvml)
    cc -Wall -Werror -shared -fPIC -o "$folder/libnvidia-ml.so.1" "$here/nvml.c"
    ;;
cuda)
    # The runtime's symbols have a version, which libtorch requires.
    echo 'libcudart.so.13 { global: *; };' >"$folder/versions"
    c++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -pthread \
        -Wl,-soname,libcudart.so.13 "-Wl,--version-script=$folder/versions" \
        -isystem "$here/../../../.venv/torch/../nvidia/cu13/include" \
        -o "$folder/libcudart.so.13" "$here/cudart.cpp"
    ln -sf libcudart.so.13 "$folder/libcuda.so.1"
    ;;
*)
    echo "nvml or cuda, not $1" >&2
    exit 2
    ;;
esac
