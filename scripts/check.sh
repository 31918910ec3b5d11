#!/usr/bin/env bash
# Runs all checks of CI, in this order. Every commit must pass.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

# Tools that do not come with Rust. A missing tool is skipped, and the last line lists it.
skipped=()
optional() {
    local tool=$1
    shift
    if command -v "$tool" >/dev/null; then
        step "$@"
    else
        printf '\n== skipped: %s is not installed (cargo install --locked %s)\n' "$tool" "${tool/%typos/typos-cli}"
        skipped+=("$tool")
    fi
}

# Of the program, and of the fuzz targets, which have a lock file of their own.
dependencies() {
    cargo deny check
    cargo deny --manifest-path fuzz/Cargo.toml --config .deny.toml check advisories sources
}

step cargo fmt --all --check
step cargo clippy --workspace --all-targets -- -D warnings
step cargo clippy --package tealight -- -D warnings # without the features that tests alone need
step scripts/test.sh
RUSTDOCFLAGS="-D warnings" step cargo doc --workspace --no-deps --document-private-items
if command -v g++ >/dev/null; then
    step scripts/emulate_kernels.sh target/kernels.so # the CUDA kernels compile with g++
else
    skipped+=("g++")
fi
if command -v nvcc >/dev/null; then
    step scripts/compile_kernels.sh # and with nvcc
fi
optional cargo-deny dependencies
optional cargo-machete cargo machete
optional typos typos --config .typos.toml

if ((${#skipped[@]})); then
    printf '\nall checks passed but those skipped: %s\n' "${skipped[*]}"
else
    printf '\nall checks passed\n'
fi
