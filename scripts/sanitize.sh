#!/usr/bin/env bash
# Searches for undefined behaviour and broken memory: Miri interprets tests of the unsafe code and of readers of files,
# and the fuzz targets run under AddressSanitizer. Needs a nightly Rust with the components miri and rust-src, and
# cargo-fuzz.
#
#     scripts/sanitize.sh                       both, a minute for each fuzz target
#     scripts/sanitize.sh miri                  10 to 30 minutes
#     scripts/sanitize.sh fuzz [SECONDS] [TARGET…]
#
# SECONDS are those of the clock. A target fails at an allocation above 257 MiB, 256 MiB above the longest input, and at
# 512 MiB of memory in all (`http`: 1.5 GiB), which AddressSanitizer and the target itself also need.
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
    export ASAN_OPTIONS=quarantine_size_mb=16:${ASAN_OPTIONS:-}
    # Targets write each input to files: on a disk that takes most of their time.
    if [[ -z ${TMPDIR:-} && -d /dev/shm ]]; then export TMPDIR=/dev/shm; fi
    for target in "${targets[@]}"; do
        # The server of `http` holds five models.
        local memory=512
        if [[ $target == http ]]; then memory=1536; fi
        # The default is one unit for each crate, which leaves all processors but one idle while it is built.
        cargo fuzz run --codegen-units 16 "$target" -- -max_total_time="$seconds" -max_len=1048576 \
            -rss_limit_mb="$memory" -malloc_limit_mb=257 -timeout=20 -print_final_stats=1
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
