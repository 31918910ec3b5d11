#!/usr/bin/env bash
# Checks how threads hand over loops (backend/threads/handover.rs) under all interleavings, with loom. Builds all
# dependencies once more, for `--cfg loom`.
#
#     scripts/loom.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

RUSTFLAGS="--cfg loom" cargo test -p tealight-ops --release --lib --target-dir target/loom handover
