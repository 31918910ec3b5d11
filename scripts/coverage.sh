#!/usr/bin/env bash
# Prints the line coverage of each crate: `scripts/coverage.sh [NEXTEST_FILTER]`. Requires cargo-llvm-cov, and
# LLVM_COV and LLVM_PROFDATA if rustup has no llvm-tools.
#
# Instrumentation slows the loops of tealight-ops, and the longest tests from seconds to minutes. Tests are
# ended after 60 s; lines that only they reach count as not covered.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_LLVM_PROFDATA_FLAGS="-failure-mode=all" # tests that kill processes leave incomplete profiles

settings=$(mktemp --suffix .toml)
report=$(mktemp)
trap 'rm -f "$settings" "$report"' EXIT
printf '[profile.default]\nslow-timeout = { period = "60s", terminate-after = 1 }\n' >"$settings"

filter=${1:-'not (test(/^overfit::/) | binary(large_corpus) | test(/^benching|^documentation|^ablating/))'}
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
