#!/usr/bin/env bash
# Trains with several processes whose gradients travel by NCCL, and compares every byte of the results with those of the
# way through host memory and of one process. The GPUs, CUDA and NCCL are emulated (scripts/emulate_cuda.sh). Requires
# `mpirun` of Open MPI or MPICH, and a build with `--features nccl`:
#
#     scripts/emulate_nccl.sh target/emulated-cuda target/debug/tealight
set -euo pipefail
emulated=$(realpath "$1") tealight=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > config.toml <<'EOF'
seed = 7
[task]
kind = "weather"
window = 3
[task.source]
kind = "markov"
[task.regime]
kind = "examples"
n = 60
n_validation = 20
[model]
d_model = 8
n_layers = 1
n_heads = 2
dropout = 0.1
[training]
steps = 6
batch_size = 3
micro_batches = 4
max_grad_norm = 1.0
ema_decay = 0.9
evaluate_every = 2
[checkpoint]
every = 3
[log]
every = 1
EOF
export LD_LIBRARY_PATH=$emulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} TEALIGHT_EMULATED_CUDA_DEVICES=4
# These kernels do not run on a GPU.
export XDG_CACHE_HOME=$work/cache
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_mpi_yield_when_idle=1 RAYON_NUM_THREADS=1
oversubscribe=()
if mpirun --version | grep -q "Open MPI"; then oversubscribe=(--oversubscribe --bind-to none); fi

# train NAME LAUNCHER... -- SETTING...
train() {
    local name=$1 launcher=()
    shift
    while [[ $1 != -- ]]; do launcher+=("$1") && shift; done
    shift
    local settings=()
    for setting; do settings+=(--set "$setting"); done
    "${launcher[@]}" "$tealight" train config.toml --name "$name" --device cuda --quiet "${settings[@]}" > "$name.out"
}

# What a run leaves, without times and the settings that change no number.
digest() {
    (cd "runs/$1" && sha256sum checkpoints/step-000006/* && sed -E 's/,"(examples|tokens)_per_second":[^,}]*//g' metrics.jsonl | sha256sum)
}

failed=0
for optimizer in adamw muon; do
    for compress in none bf16; do
        reference=
        for n in 1 2 4; do
            # Rounded gradients are repeatable for one number of processes only.
            if [[ $compress == bf16 ]]; then
                [[ $n == 1 ]] && continue
                reference=
            fi
            launcher=()
            if ((n > 1)); then launcher=(mpirun -n "$n" "${oversubscribe[@]}"); fi
            for transport in host nccl; do
                for shard in false true; do
                    if [[ $n == 1 && $transport$shard != hostfalse ]]; then continue; fi
                    name=$optimizer-$compress-$n-$transport-$shard
                    train "$name" "${launcher[@]}" -- "optimizer.kind=$optimizer" "distributed.compress=$compress" \
                        "distributed.transport=$transport" "distributed.shard_optimizer=$shard" distributed.bucket_mb=1e-3
                    result=$(digest "$name")
                    : "${reference:=$result}"
                    if [[ $result == "$reference" ]]; then echo "same    $name"; else echo "DIFFERS $name" && failed=1; fi
                done
            done
        done
    done
done
exit $failed
