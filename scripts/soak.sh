#!/usr/bin/env bash
# Checks that memory does not grow: resident memory after 1,000 and after 10,000 steps must differ by less than 2 %.
# docs/RELIABILITY.md has the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

resident() { awk '/^VmRSS:/ { print $2 }' "/proc/$1/status"; }
steps() { { tail -n 1 "$1" 2>/dev/null || true; } | sed -n 's/^{"step":\([0-9]*\),.*/\1/p'; }

soak() {
    local config=$1 name early='' late=''
    shift
    name=$(basename "$config" .toml)
    target/release/tealight train "$config" --quiet --name "$name" --runs "$runs" --set training.steps=20000 \
        --set log.every=100 --set checkpoint.every=500 --set training.evaluate_every=500 "$@" &
    local pid=$! metrics="$runs/$name/metrics.jsonl" step
    while kill -0 "$pid" 2>/dev/null; do
        step=$(steps "$metrics")
        if [[ -z $early && ${step:-0} -ge 1000 ]]; then early=$(resident "$pid"); fi
        if [[ ${step:-0} -ge 10000 ]]; then late=$(resident "$pid") && break; fi
        sleep 0.05
    done
    if [[ -z $early || -z $late ]]; then
        echo "${config#configs/} has ended before step 10,000" >&2
        exit 1
    fi
    kill -KILL "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
    awk -v config="${config#configs/}" -v early="$early" -v late="$late" 'BEGIN {
        growth = 100 * (late / early - 1)
        printf "%-28s %7.1f MiB after 1,000 steps, %7.1f MiB after 10,000: %+.1f %%\n",
            config, early / 1024, late / 1024, growth
        exit growth > 2
    }'
}

soak configs/weather/markov.toml
soak configs/seq2seq/reverse.toml --set training.batch_size=8 --set model.d_model=32
soak configs/masked_lm/diary.toml --set training.batch_size=2 --set model.d_model=32 --set task.tokenizer.vocab_size=300
