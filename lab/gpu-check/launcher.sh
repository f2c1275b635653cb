#!/usr/bin/env bash
# Finds a Python with PyTorch 2.11, gives its libraries to the programs beside this file, and runs the check with the given flags.
# PYTHON=/path/to/python selects another Python than the one on the PATH.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

fail() {
    echo "gpu-check: $*" >&2
    exit 1
}

# Prints the version of PyTorch and the folder of its package, without importing it, which takes long.
find_torch='
import importlib.metadata, importlib.util, os
print(importlib.metadata.version("torch"))
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))'

output=$("$here/bin/gpu-check" --version 2>&1) ||
    fail "the programs do not run on this host ($(uname -m), $(getconf GNU_LIBC_VERSION || true)): $output"

found=
for python in ${PYTHON:+"$PYTHON"} python3 python; do
    if torch=$("$python" -c "$find_torch" 2>/dev/null); then
        version=${torch%%$'\n'*}
        packages=${torch#*$'\n'}
        found+=" $python has $version;"
        [[ $version == 2.11.* ]] && break
    fi
    python=
done
[[ -n $python ]] ||
    fail "a Python with PyTorch 2.11 is needed (PYTHON=/path/to/python selects one);${found:- no Python with PyTorch was found}"

libraries=$packages/torch/lib
for folder in "$packages"/nvidia/*/lib; do
    [[ -d $folder ]] && libraries+=:$folder
done
# Containers have the driver in this folder, often without having it on their paths.
driver=/usr/local/nvidia
[[ -d $driver/bin ]] && PATH+=:$driver/bin
for folder in "$driver"/lib64 "$driver"/lib; do
    [[ -d $folder ]] && libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
output=$("$here/bin/packhorse-worker" --version 2>&1) ||
    fail "the worker does not run with the libtorch of $python: $output"

exec "$here/bin/gpu-check" --programs "$here/bin" --python "$python" "$@"
