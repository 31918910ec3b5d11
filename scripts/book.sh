#!/usr/bin/env bash
# Builds the documentation as a book: target/book/html/index.html. Trains small models for its pictures and outputs,
# which takes minutes at first; later builds keep them as long as the binary stays the same.
#
# Needs mdBook (cargo install --locked mdbook), Python 3, and a release build; no network.
# scripts/book.sh [FOLDER]; TEALIGHT names another binary than that of the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(realpath -m "${1:-target/book}")
tealight=$(realpath -m "${TEALIGHT:-target/release/tealight}")
if ! command -v mdbook >/dev/null; then
    echo "mdbook is not installed: cargo install --locked mdbook" >&2
    exit 1
fi
if [[ ! -x $tealight ]]; then
    echo "$tealight does not exist: cargo build --release" >&2
    exit 1
fi

python3 scripts/book/assemble.py "$tealight" "$folder"
mdbook build "$folder" --dest-dir "$folder/html"
python3 scripts/book/check.py "$folder/html"
