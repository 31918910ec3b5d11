#!/bin/sh
# Stands for `cargo` in the examples of the documentation: `cargo run -- …` is `tealight …`, and a named example or path
# must be there.
set -eu
program=tealight
while [ $# -gt 0 ]; do
    case "$1" in
    --) break ;;
    -p) package=$2 ;;
    --path) [ -d "$2" ] ;;
    --example) program='' && [ -f "crates/$package/examples/$2.rs" ] ;;
    esac
    shift
done
if [ $# -gt 0 ] && [ -n "$program" ]; then
    shift
    exec tealight "$@"
fi
