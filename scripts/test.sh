#!/usr/bin/env bash
# The whole test suite, doc tests included. It needs Rust and nothing else; cargo-nextest makes it
# quicker where there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace
    cargo test --workspace --doc # nextest runs no doc tests
else
    cargo test --workspace
fi
