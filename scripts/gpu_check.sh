#!/usr/bin/env bash
# All checks that need a GPU, for a GPU machine without Rust and without a network: pack here, run there.
#
#     scripts/gpu_check.sh pack [FOLDER] [TEXT]   builds for CUDA (for the CPU if FEATURES= is set and empty)
#     scripts/gpu_check.sh run [FOLDER] [OUTPUT]  on the machine with the GPU: ten minutes, OUTPUT.json and OUTPUT.md
#     scripts/gpu_check.sh dry-run [TEXT]         both on this machine, on the CPU, with tiny sizes
#
# TEXT holds tinyshakespeare.txt and books/*.txt (default: data). The default FOLDER is target/gpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Suites that compare kernels with reference implementations, models with records, and resumed with uninterrupted runs.
suites=(
    tealight-ops:agreement tealight-ops:aft tealight-ops:attention tealight-ops:kernels tealight-ops:nystrom
    tealight-ops:scans tealight-ops:sparse_softmax
    tealight-model:gradients tealight-model:half_precision tealight-model:masked_lm tealight-model:model_laws
    tealight-model:golden_attention
    tealight-train:hf tealight-train:training
)

pack() {
    local folder=$1 text=$2 features=${FEATURES-cuda} target=${CARGO_TARGET_DIR:-target}
    local build=(--target-dir "$target")
    if [[ -n $features ]]; then build+=(--features "$features"); fi
    rm -rf "$folder" && mkdir -p "$folder/suites" "$folder/text"
    cargo build --release -p tealight "${build[@]}"
    strip -o "$folder/tealight" "$target/release/tealight"
    local suite crate name binary
    for suite in "${SUITES[@]:-${suites[@]}}"; do
        crate=${suite%:*} name=${suite#*:}
        binary=$(cargo test --no-run --message-format=json -p "$crate" --test "$name" "${build[@]}" \
            ${features:+--features "$crate/emulator"} | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
        strip -o "$folder/suites/$crate-$name" "$binary"
    done
    cp -r configs "$folder/configs"
    cp -r "$text/tinyshakespeare.txt" "$text/books" "$folder/text/"
    pwd >"$folder/built_in" # the suites read their records from this path
    git rev-parse HEAD >"$folder/commit"
    XZ_OPT="-6 -T0" tar -C "$folder" -cJf "$folder.tar.xz" .
    du -h "$folder.tar.xz"
}

run() {
    local folder=$1 output=$2
    shift 2
    if [[ ! -d $folder ]]; then
        mkdir -p "$folder" && tar -C "$folder" -xJf "$folder.tar.xz"
    fi
    local built_in
    built_in=$(<"$folder/built_in")
    if [[ ! -e $built_in ]]; then
        mkdir -p "$(dirname "$built_in")" && ln -s "$PWD" "$built_in"
    fi
    # CUDA libraries installed with PyTorch, for the dynamic loader and for stub libraries that load them at first call.
    local libraries
    libraries=$(python3 -c \
        'import nvidia; print(":".join(f"{p}/{d}" for p in nvidia.__path__ for d in ("cu13/lib", "nccl/lib")))' \
        2>/dev/null || true)
    export CUDA_LAZY_PATH=${CUDA_LAZY_PATH:-$libraries}
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$libraries
    python3 scripts/bench/gpu.py --pack "$folder" --output "$output" "$@"
}

case "${1:-}" in
pack) pack "${2:-target/gpu}" "${3:-data}" ;;
run) run "${2:-target/gpu}" "${3:-gpu}" "${@:4}" ;;
dry-run)
    SUITES=(tealight-ops:known_values)
    FEATURES='' pack target/gpu_dry "${2:-data}"
    run target/gpu_dry target/gpu_dry --dry-run
    ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
