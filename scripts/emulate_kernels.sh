#!/usr/bin/env bash
# Compiles the CUDA kernels for the CPU (scripts/cuda_emulator), as a library that tests load instead of a GPU's:
#
#     scripts/emulate_kernels.sh target/kernels.so
#     TEALIGHT_EMULATED_KERNELS=target/kernels.so cargo nextest run -p tealight-ops
set -euo pipefail
output=$(realpath -m "${1:-target/kernels.so}")
others=("${@:2}") # further object files and linker flags
cd "$(dirname "${BASH_SOURCE[0]}")/../crates/tealight-ops/kernels"
emulator=../../../scripts/cuda_emulator

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
flags=(-std=c++17 -O2 -fPIC -Wall -Wextra -Wno-unused-function -Wno-maybe-uninitialized -fno-strict-aliasing -U_FORTIFY_SOURCE "-I$emulator")
for bits in 16 32 64; do
    jobs=()
    for kernels in *.cu; do
        straight=$([[ $kernels == elementwise.cu ]] && echo true || echo false)
        "${CXX:-g++}" "${flags[@]}" -DNUMBER_BITS=$bits -DIS_STRAIGHT="$straight" -include emulator.hpp -include prelude.cuh -x c++ \
            -c "$kernels" -o "$objects/${kernels%.cu}_$bits.o" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
done
"${CXX:-g++}" "${flags[@]}" -DNUMBER_BITS=0 -c "$emulator/emulator.cpp" -o "$objects/emulator.o"
"${CXX:-g++}" -shared -o "$output" "$objects"/*.o "${others[@]}" -ldl
