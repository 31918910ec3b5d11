#!/usr/bin/env bash
# Kills runs at random moments, 200 times over ten configurations, and compares each with an uninterrupted run.
# Takes some minutes; docs/RELIABILITY.md has the results.
#
#     scripts/torture.sh [KILLS_PER_CONFIGURATION] [SEED]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kills=${1:-20}
seed=${2:-0}
cargo build --release
verify() {
    local config=$1
    shift
    printf "%-32s" "${config#configs/}"
    target/release/tealight verify-resume "$config" --kills "$kills" --seed "$seed" "$@"
}

# The ten differ in task, attention, optimizer, schedule, dropout, accumulation, weight averaging and early stopping.
ema=(--set training.ema_decay=0.9 --set model.dropout=0.1)
micro=(--set training.micro_batches=3 --set training.evaluate_every=7)
early=(--set training.early_stopping.patience=50 --set training.evaluate_every=5)
small=(--set task.tokenizer.vocab_size=400 --set training.batch_size=4)
verify configs/weather/markov.toml --steps 200 "${ema[@]}"
verify configs/weather/one_four_eight.toml --steps 200 "${micro[@]}" --set optimizer=lion
verify configs/weather/dotmod.toml --steps 200 "${early[@]}" --set model.attention=aft_simple
verify configs/weather/ten_days.toml --steps 200 --set optimizer=muon --set model.attention=linear
verify configs/weather/fifteen_days.toml --steps 200 --set optimizer=adafactor --set schedule=wsd
verify configs/seq2seq/reverse.toml --steps 40 "${ema[@]}" --set training.batch_size=16
verify configs/seq2seq/dates.toml --steps 40 --set optimizer=lamb --set training.batch_size=16
verify configs/listops/small.toml --steps 24 --set training.batch_size=8 --set model.dropout=0.1
verify configs/classify/my_texts.toml --steps 40 "${micro[@]}"
verify configs/masked_lm/diary.toml --steps 24 "${small[@]}" "${ema[@]}"
