#!/usr/bin/env bash
# Compiles the kernels for a GPU, for every type of numbers, with nvcc, and keeps nothing: do they compile?
#
#     scripts/compile_kernels.sh [ARCHITECTURE]     sm_90 unless said otherwise
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../crates/tealight-ops/kernels"

for kernels in *.cu; do
    for bits in 16 32 64; do
        nvcc -std=c++17 "-arch=${1:-sm_90}" -ptx "-DNUMBER_BITS=$bits" -include prelude.cuh --Werror all-warnings \
            "$kernels" -o /dev/null
    done
done
