#!/usr/bin/env bash
# Trains a tiny run of each task, writes their reports and a comparison, and looks at them in a headless Chromium: clicks,
# hovers, types; no page may log an error or ask for anything. Then `tealight serve` shows a run while it trains, and its
# playground is used; these pages may ask their own server only. Screenshots lie in the folder given, or in
# /tmp/tealight_pages.
#
# Needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver) and Python 3.
# scripts/browser_check.sh [FOLDER]; TEALIGHT names another binary than that of the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(realpath -m "${1:-/tmp/tealight_pages}")
tealight=${TEALIGHT:-target/release/tealight}
runs=$folder/runs
rm -rf "$runs" "$folder/heads"
mkdir -p "$runs"

train() { # NAME CONFIG SETTING…
    local name=$1 config=$2 settings=()
    shift 2
    for setting in schedule.warmup_steps=10 log.every=1 training.evaluate_every=20 training.steps=60 "$@"; do
        settings+=(--set "$setting")
    done
    "$tealight" train "configs/$config.toml" --runs "$runs" --name "$name" -q "${settings[@]}" >"$folder/$name.log"
}
head -c 200000 crates/tealight-train/src/task/*/mod.rs >"$folder/text.txt"
train weather weather/dotmod_5000 training.steps=300 training.evaluate_every=50
train weather2 weather/dotmod_5000 training.steps=300 training.evaluate_every=50 optimizer.lr=0.01 seed=1
train masked_lm masked_lm/diary
train masked_lm2 masked_lm/diary seed=2 training.steps=200
train causal_lm causal_lm/shakespeare_cpu "task.corpus.paths=[\"$folder/text.txt\"]" task.n_validation=64
train classify classify/my_texts
train images images/shapes task.data.n_train=2000 task.data.n_validation=400
train seq2seq seq2seq/reverse
train listops listops/small task.n_test=200
"$tealight" train configs/weather/dotmod_5000.toml --runs "$runs" --name stopped -q --stop-after 120
"$tealight" ablate configs/weather/dotmod_5000.toml --vary model.n_heads=1,2 --seeds 2 --output "$folder/heads" -q \
    --set training.steps=60 --set training.evaluate_every=20 --set schedule.warmup_steps=10 >"$folder/ablation.log"

pages=()
for run in weather masked_lm causal_lm classify images seq2seq listops stopped; do
    pages+=("$("$tealight" report "$runs/$run" -q --output "$folder/$run.html")")
done
pages+=("$("$tealight" report "$runs/weather" "$runs/weather2" -q --output "$folder/comparison.html")")
pages+=("$("$tealight" report "$folder/heads" -q --output "$folder/ablation.html")")
python3 scripts/browser_check/check.py "$folder" "${pages[@]}"

coproc server { exec "$tealight" serve "$runs" --port 0 -q; }
trap 'kill "$server_PID"' EXIT
read -r address <&"${server[0]}"
pictures=(crates/tealight-train/tests/golden/models/vit/*.png)
python3 scripts/browser_check/served.py "$folder" "$address" "${pictures[0]}" \
    "$tealight" train configs/weather/dotmod_5000.toml --runs "$runs" --name live -q --set log.every=1 \
    --set training.steps=6000 --set training.evaluate_every=1000
