#!/usr/bin/env bash
# Searches for undefined behaviour and broken memory: Miri interprets tests of the unsafe code and of readers of files,
# and the fuzz targets run under AddressSanitizer. Needs a nightly Rust with the components miri and rust-src, and
# cargo-fuzz.
#
#     scripts/sanitize.sh                       both, a minute for each fuzz target
#     scripts/sanitize.sh miri                  10 to 30 minutes
#     scripts/sanitize.sh fuzz [SECONDS] [TARGET…]
#
# Miri interprets no SIMD of a processor and no library in C: kernels run at their portable level, without Open MPI,
# CUDA, and the calls of Linux that configure memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN:-nightly}
what=${1:-all}
seconds=${2:-60}
targets=("${@:3}")

# Tests of a crate's library whose names contain one of these; those of numbers take hours.
ops=(
    backend::matrix backend::scratch backend::parallel backend::threads backend::cuda
    gemm::tests::every gemm::tests::gaps gemm::tests::heads gemm::tests::not_a
    rng::tests::philox rng::tests::seeds rng::tests::a_permutation rng::tests::an_impossible
)
train=(
    communicator::threads mpi::launcher mpi::parts mpi::peers mpi::watch mpi::world
    settings::suggest storage::pickle
    --skip stopped_process --skip no_pickle_grows
)

miri() {
    export MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation -Zmiri-ignore-leaks}
    export TEALIGHT_SIMD=portable RAYON_NUM_THREADS=2
    cargo miri test -p tealight-ops --lib -- "${ops[@]}"
    cargo miri test -p tealight-train --lib -- "${train[@]}"
}

# Long inputs show what grows faster than an input.
fuzz() {
    if ((${#targets[@]} == 0)); then
        mapfile -t targets < <(cargo fuzz list)
    fi
    for target in "${targets[@]}"; do
        cargo fuzz run "$target" -- -max_total_time="$seconds" -max_len=1048576 -rss_limit_mb=2048 \
            -malloc_limit_mb=1024 -timeout=20
    done
}

case $what in
    all)
        miri
        fuzz
        ;;
    miri | fuzz) "$what" ;;
    *)
        echo "usage: $0 [all|miri|fuzz] [SECONDS] [TARGET…]" >&2
        exit 2
        ;;
esac
