#!/bin/sh
# Installs the program `tealight` for this user:
#
#     curl -LsSf URL/install.sh | sh
#
# downloads the archive for this machine from the release that this file belongs to, compares its SHA-256 with that of
# SHA256SUMS, and copies the program to ~/.local/bin. Settings, as environment variables:
#
#     TEALIGHT_INSTALL_DIR   another directory for the program
#     TEALIGHT_RELEASE       another address or directory of archives
set -eu

# The script that builds a release writes its address and its version here.
release=${TEALIGHT_RELEASE:-@RELEASE@}
version=@VERSION@
directory=${TEALIGHT_INSTALL_DIR:-$HOME/.local/bin}

fail() {
    echo "error: $1" >&2
    exit 1
}

case "$release" in
@*) fail "this file is not from a release: set TEALIGHT_RELEASE to the address or directory of the archives" ;;
esac

case "$(uname -s) $(uname -m)" in
"Linux x86_64") target=x86_64-unknown-linux-gnu ;;
"Linux aarch64" | "Linux arm64") target=aarch64-unknown-linux-gnu ;;
"Darwin arm64") target=aarch64-apple-darwin ;;
*) fail "there is no archive for $(uname -s) on $(uname -m); \`cargo install\` builds the program from source" ;;
esac
if [ "$target" != aarch64-apple-darwin ] && ! ldd --version 2>&1 | grep -qi -e glibc -e 'gnu libc'; then
    fail "the archives need glibc, which this system does not have (musl?); \`cargo install\` builds from source"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

fetch() {
    if [ -f "$release/$1" ]; then
        cp "$release/$1" "$work/$1"
    elif command -v curl >/dev/null; then
        curl --proto '=https' --tlsv1.2 -LsSf "$release/$1" -o "$work/$1" || fail "cannot download $release/$1"
    elif command -v wget >/dev/null; then
        wget -q --https-only "$release/$1" -O "$work/$1" || fail "cannot download $release/$1"
    else
        fail "neither curl nor wget is there to download $release/$1"
    fi
}

archive=tealight-$version-$target.tar.gz
fetch SHA256SUMS
fetch "$archive"
expected=$(awk -v name="$archive" '$2 == name { print $1 }' "$work/SHA256SUMS")
if command -v sha256sum >/dev/null; then
    actual=$(sha256sum "$work/$archive")
else
    actual=$(shasum -a 256 "$work/$archive")
fi
actual=${actual%% *}
[ -n "$expected" ] || fail "SHA256SUMS does not name $archive"
[ "$expected" = "$actual" ] || fail "$archive has the SHA-256 $actual, and SHA256SUMS says $expected"

tar -xzf "$work/$archive" -C "$work"
mkdir -p "$directory"
# A new file, renamed: a program that runs keeps its own.
cp "$work/tealight-$version-$target/tealight" "$directory/.tealight.new"
chmod 755 "$directory/.tealight.new"
mv "$directory/.tealight.new" "$directory/tealight"
"$directory/tealight" --version
echo "installed $directory/tealight; to remove it, delete that file"
case ":$PATH:" in
*":$directory:"*) ;;
*) echo "$directory is not on your PATH: add it in the profile of your shell" ;;
esac
