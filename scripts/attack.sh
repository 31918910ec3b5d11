#!/usr/bin/env bash
# Does to the release build what a hostile client or file may do, and says whether it holds. Needs python3, uses loopback
# addresses alone, and takes some minutes. An experiment that needs root is skipped by name.
#
#     scripts/attack.sh [TEALIGHT] [EXPERIMENT…]
#
# TEALIGHT is a built program; without it, or as `-`, the release build is made. An experiment is a function below, such as
# `candidates`. The exit status is 1 if one of them fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tealight=${1:--}
shift || true
if [[ $tealight == - ]]; then
    cargo build --release --locked || exit 1
    tealight=target/release/tealight
fi
tealight=$(realpath "$tealight")
attack=$(realpath scripts/attack/attack.py)
files=$(realpath scripts/attack/files.py)
models=$(realpath crates/tealight-train/tests/golden/models)
folder=$(mktemp -d)
server=
export TEALIGHT_TOKEN=a-token-for-experiments

# Memory of a server in KiB (`ulimit -v`), and the longest time of an experiment in seconds.
memory=4000000
patience=90

stop() {
    if [[ -n $server ]]; then
        kill "$server" 2>/dev/null
        wait "$server" 2>/dev/null
    fi
    server=
}
export TEALIGHT_CACHE=$folder/cache
trap 'stop; rm -rf "$folder"' EXIT

# Serves the arguments on a free port, and sets `server` and `address`.
serve() {
    rm -f "$folder/address"
    (ulimit -v "$memory" && exec "$tealight" serve --port 0 "$@") >"$folder/address" 2>"$folder/log" &
    server=$!
    for _ in {1..100}; do
        if [[ -s $folder/address ]]; then break; fi
        sleep 0.1
    done
    address=$(cut -d/ -f3 <"$folder/address")
    [[ -n $address ]]
}

# Runs a function of attack.py against the server.
against() {
    timeout "$patience" python3 -u "$attack" "$1" "$address" "$server" "${@:2}"
}

# 1. Numbers of layers that no memory holds are refused by key, value and limit, within 1 GB, in each family.
layers() {
    python3 "$files" layers "$tealight"
}

# 2. A description that cannot be loaded costs its own requests an answer: an error, then /health 200.
description() {
    mkdir -p "$folder/described/m"
    printf '{"model_type":"mistral","num_hidden_layers":9223372036854775807}' >"$folder/described/m/config.json"
    serve "$folder/described" && against description
}

# 3. A pickle that repeats a long name by its memo is refused within 1.5 GB: "it is there twice".
pickle() {
    python3 "$files" pickle "$tealight" "$models/bert"
}

# 4. 8 texts of 120 masks with top_k 1000 are refused with 400 at once, and memory grows by less than 64 MiB.
candidates() {
    serve "$(wide_model)" && against candidates
}

# 5. A named pipe as `metrics.jsonl`: the list of runs is answered; `report.json` → /dev/zero: `report` ends with an error.
pipes() {
    local run page status
    run=$(small_run pipes) || return 1
    rm "$run/metrics.jsonl" && mkfifo "$run/metrics.jsonl"
    serve "$run/.." || return 1
    for page in / /health; do
        status=$(curl -s -m 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $TEALIGHT_TOKEN" "http://$address$page")
        echo "$page: status $status"
        [[ $status == 200 ]] || return 1
    done
    # What is followed live has no end, but its first event comes at once.
    [[ -n $(curl -s -N -m 5 -H "Authorization: Bearer $TEALIGHT_TOKEN" "http://$address/events" | head -c 1) ]] || return 1
    run=$(small_run devices) || return 1
    ln -sf /dev/zero "$run/report.json"
    (ulimit -v 2000000 && exec timeout 20 "$tealight" report "$run") 2>&1 | tee "$folder/said"
    grep -q 'report.json`: it is no regular file' "$folder/said"
}

# 6. `.report.html.tmp` and `.lock` that are links: `report` and `train` leave the target as it is.
links() {
    local run
    run=$(small_run links) || return 1
    echo mine >"$folder/mine"
    ln -s "$folder/mine" "$run/.report.html.tmp"
    "$tealight" report "$run" || return 1
    ln -sf "$folder/mine" "$run/.lock"
    "$tealight" train "$run" && return 1
    [[ $(cat "$folder/mine") == mine ]]
}

# 7. 256 sockets without the token ask every 8 s; the owner is answered with 200.
sockets() {
    serve "$models/bert" && against sockets
}

# 8. 64 prompts × 16 × 4096 tokens are refused; a long continuation ends when its client is gone, and the next is answered
# within seconds.
prompts() {
    serve "$models/gpt2" && against prompts
}

# 9. 22 MB of numbers in place of a picture are refused; meanwhile /health takes less than 100 ms, and memory grows by less
# than 64 MiB.
numbers() {
    serve "$models/vit" && against numbers
}

# 10. 200 requests for unknown models over 8,000 empty folders; meanwhile /health takes less than 100 ms.
folders() {
    mkdir -p "$folder"/many/{1..20}/{1..20}/{1..20}
    serve "$folder/many" && against folders
}

# 11. A server that was started without a token answers another user of this machine with 401.
user() {
    if [[ $(id -u) != 0 ]] || ! command -v runuser >/dev/null || ! command -v curl >/dev/null; then
        echo "needs root, runuser and curl"
        return 77
    fi
    local status token=$TEALIGHT_TOKEN
    unset TEALIGHT_TOKEN
    serve "$models/bert"
    export TEALIGHT_TOKEN=$token
    status=$(timeout "$patience" runuser -u nobody -- curl -s -o /dev/null -w '%{http_code}' "http://$address/models/bert")
    echo "status $status"
    [[ $status == 401 ]]
}

# 12. Where the file system has no locks (a preloaded `flock` that fails), a run that is trained in one name space of
# processes is not resumed in another.
locks() {
    if [[ $(id -u) != 0 ]] || ! command -v cc >/dev/null || ! command -v unshare >/dev/null; then
        echo "needs root, cc and unshare"
        return 77
    fi
    echo '#include <errno.h>
        int flock(int file, int operation) { errno = ENOLCK; return -1; }' >"$folder/flock.c"
    cc -shared -fPIC -o "$folder/flock.so" "$folder/flock.c" || return 77
    local run=$folder/locked said
    LD_PRELOAD=$folder/flock.so "$tealight" train weather/markov --runs "$folder" --name locked -q \
        --set training.steps=100000000 >"$folder/log" 2>&1 &
    server=$!
    for _ in {1..100}; do
        if [[ -s $run/metrics.jsonl ]]; then break; fi
        sleep 0.1
    done
    said=$(LD_PRELOAD=$folder/flock.so unshare --pid --fork --mount-proc timeout 30 "$tealight" train "$run" 2>&1)
    echo "$said"
    [[ $said == *"cannot be seen from here"* ]]
}

# 13. 5,000 changed pictures and archives against a classifier: none costs another request its answer.
pictures() {
    serve "$models/vit" && against pictures "$models"/vit/*.png
}

# 14. A strange value of each key of all recorded configurations ends without a panic, within 256 MB. The tests try 27
# values of each, without that limit.
keys() {
    python3 "$files" keys "$tealight" "$models"/*/
}

# The folder of a finished run of this name.
small_run() {
    "$tealight" train weather/markov --runs "$folder/$1" --name run -q --set training.steps=20 \
        --set schedule.warmup_steps=1 --set training.evaluate_every=10 >"$folder/log" 2>&1 && echo "$folder/$1/run"
}

# A run of a masked language model with 2,000 tokens, which reads 128 of them.
wide_model() {
    "$tealight" train masked_lm/diary --runs "$folder" --name wide -q --set training.steps=1 \
        --set schedule.warmup_steps=1 --set training.evaluate_every=1 >"$folder/log" && echo "$folder/wide"
}

experiments=(layers description pickle candidates pipes links sockets prompts numbers folders user locks pictures keys)
if (($#)); then experiments=("$@"); fi

failed=0
summary=
for experiment in "${experiments[@]}"; do
    printf '\n== %s\n' "$experiment"
    started=$SECONDS
    "$experiment"
    case $? in
    0) result=pass ;;
    77) result=skipped ;;
    *)
        result=fail
        failed=1
        tail -n 20 "$folder/log" 2>/dev/null
        ;;
    esac
    stop
    summary+=$(printf '%-12s %-8s %3d s' "$experiment" "$result" $((SECONDS - started)))$'\n'
done
printf '\n%s' "$summary"
exit "$failed"
