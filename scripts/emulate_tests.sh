#!/usr/bin/env bash
# Runs the test suites of the CUDA kernels on the emulator. Slow: the emulator runs the threads of a GPU one by one.
#
#     scripts/emulate_tests.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/emulate_kernels.sh target/kernels.so
export TEALIGHT_EMULATED_KERNELS=$PWD/target/kernels.so
cargo test -p tealight-ops --features emulator --test kernels --test attention --test scans --test aft --test nystrom \
    --test agreement
cargo test -p tealight-model --features emulator --test half_precision --test masked_lm
