#!/usr/bin/env bash
# How much of each crate the tests run, in lines: `scripts/coverage.sh`, or with a filter of cargo-nextest
# behind it. Takes cargo-llvm-cov, and LLVM_COV and LLVM_PROFDATA where rustup has no llvm-tools.
#
# The loops of tealight-ops count every turn, which takes the longest tests from seconds to minutes: those
# are ended, and what they alone would have run counts as not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_LLVM_PROFDATA_FLAGS="-failure-mode=all" # tests that kill processes leave torn profiles behind

settings=$(mktemp --suffix .toml)
report=$(mktemp)
trap 'rm -f "$settings" "$report"' EXIT
printf '[profile.default]\nslow-timeout = { period = "60s", terminate-after = 1 }\n' >"$settings"

filter=${1:-'not (binary(overfit) | binary(large_corpus) | test(/^benching|^documentation|^ablating/))'}
cargo llvm-cov nextest --workspace --no-report --no-fail-fast --config-file "$settings" -E "$filter" || true
cargo llvm-cov report --json --summary-only --output-path "$report"

python3 - "$report" <<'PYTHON'
import collections, json, sys

crates = collections.defaultdict(lambda: [0, 0])
for file in json.load(open(sys.argv[1]))["data"][0]["files"]:
    crate, _, rest = file["filename"].rpartition("/crates/")[2].partition("/")
    if rest.startswith("src/"):
        lines = file["summary"]["lines"]
        crates[crate][0] += lines["covered"]
        crates[crate][1] += lines["count"]
for crate, (covered, lines) in sorted(crates.items()):
    print(f"{crate:16} {covered:6} of {lines:6} lines  {covered / lines:6.1%}")
PYTHON
