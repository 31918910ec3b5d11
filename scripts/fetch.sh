# shellcheck shell=bash
# Functions of the fetch_*.sh scripts, which source this file. Requires curl, and sha256sum or shasum.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sha256() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | cut -d ' ' -f 1
    else
        shasum -a 256 "$1" | cut -d ' ' -f 1
    fi
}

# check FILE SHA256: fails unless the file has this digest.
check() {
    local file=$1 expected=$2 actual
    actual=$(sha256 "$file")
    if [[ $actual != "$expected" ]]; then
        printf '%s: its SHA-256 is %s and should be %s\n' "$file" "$actual" "$expected" >&2
        return 1
    fi
}

# fetch FILE SHA256 URL...: downloads from the first URL that succeeds. An existing file is only checked; a download with
# another digest is removed.
fetch() {
    local file=$1 expected=$2 url
    shift 2
    if [[ -e $file ]]; then
        check "$file" "$expected"
        printf '%s is there\n' "$file"
        return
    fi
    mkdir -p "$(dirname "$file")"
    for url in "$@"; do
        printf 'fetching %s\n' "$url"
        if curl --fail --location --show-error --retry 3 --continue-at - --output "$file.part" "$url" &&
            check "$file.part" "$expected"; then
            mv "$file.part" "$file"
            return
        fi
        rm -f "$file.part"
    done
    printf '%s could not be fetched\n' "$file" >&2
    return 1
}

# from_zip ARCHIVE MEMBER: writes the member to standard output.
from_zip() {
    if command -v unzip >/dev/null; then
        unzip -p "$1" "$2"
    else
        python3 -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as member:
    shutil.copyfileobj(member, sys.stdout.buffer)' "$1" "$2"
    fi
}
