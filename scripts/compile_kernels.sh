#!/usr/bin/env bash
# Checks that the CUDA kernels compile with nvcc in every number format. Writes no output.
#
#     scripts/compile_kernels.sh [ARCHITECTURE]     default: sm_90
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../crates/tealight-ops/src"

while read -r kernels; do
    for bits in 16 32 64; do
        nvcc -std=c++17 "-arch=${1:-sm_90}" -ptx "-DNUMBER_BITS=$bits" -I. --Werror all-warnings "$kernels" -o /dev/null
    done
done < <(find . -name '*.cu' | sort)
