#!/usr/bin/env bash
# Compiles the CUDA kernels for the CPU (scripts/cuda_emulator), into a library that tests load in place of a GPU:
#
#     scripts/emulate_kernels.sh target/kernels.so
#     TEALIGHT_EMULATED_KERNELS=$PWD/target/kernels.so cargo nextest run -p tealight-ops --features emulator
set -euo pipefail
output=$(realpath -m "${1:-target/kernels.so}")
mkdir -p "$(dirname "$output")"
others=("${@:2}") # further object files and linker flags
cd "$(dirname "${BASH_SOURCE[0]}")/.."
emulator=scripts/cuda_emulator src=crates/tealight-ops/src

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
flags=(-std=c++17 -O2 -fPIC -Wall -Wextra -Wno-unused-function -Wno-maybe-uninitialized -fno-strict-aliasing
    -U_FORTIFY_SOURCE "-I$emulator" "-I$src")
n_jobs=$(nproc) jobs=()
while read -r kernels; do
    # Threads of kernels without barriers need no fibers. The emulator aborts if such a file has one after all.
    straight=$(grep -qE '__sync|__shfl|SHARED|block_|warp_|multiply' "$kernels" && echo false || echo true)
    for bits in 16 32 64; do
        "${CXX:-g++}" "${flags[@]}" -DNUMBER_BITS=$bits -DIS_STRAIGHT="$straight" -include emulator.hpp -x c++ \
            -c "$kernels" -o "$objects/$(tr / _ <<<"${kernels%.cu}")_$bits.o" &
        jobs+=($!)
        if ((${#jobs[@]} >= n_jobs)); then
            wait "${jobs[0]}"
            jobs=("${jobs[@]:1}")
        fi
    done
done < <(find "$src" -name '*.cu' | sort)
for job in "${jobs[@]}"; do wait "$job"; done
"${CXX:-g++}" "${flags[@]}" -DNUMBER_BITS=0 -c "$emulator/emulator.cpp" -o "$objects/emulator.o"
"${CXX:-g++}" -shared -o "$output" "$objects"/*.o "${others[@]}" -ldl
