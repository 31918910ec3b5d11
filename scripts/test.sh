#!/usr/bin/env bash
# Runs the whole test suite, including doc tests. Requires only Rust; uses cargo-nextest, which is faster, if it is
# installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace
    cargo test --workspace --doc # nextest does not run doc tests
else
    cargo test --workspace
fi
