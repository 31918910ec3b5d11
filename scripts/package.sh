#!/usr/bin/env bash
# Builds what a release consists of, in target/packages: for each target a wheel, an archive and, for Linux, a Debian
# package, which hold the same program; install.sh; and SHA256SUMS.
#
#     scripts/package.sh                                    # for this machine
#     scripts/package.sh x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
#     scripts/package.sh --release URL TARGET…              # the address that install.sh downloads from
#
# Programs for Linux run with glibc 2.17 or newer, because zig links them. maturin and zig come from PyPI into
# target/packaging. The script needs Rust with the targets, Python 3.9 and, for Debian packages, dpkg-deb. Manual pages
# and completions are written by the program itself, so that a target other than this machine needs qemu-user.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

release=@RELEASE@
if [[ "${1:-}" == --release ]]; then
    release=${2:?the address that follows --release is missing}
    shift 2
fi
host=$(rustc -vV | sed -n 's/^host: //p')
targets=("${@:-$host}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
TEALIGHT_COMMIT=${TEALIGHT_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}
[[ -n "$TEALIGHT_COMMIT" ]] && export TEALIGHT_COMMIT

tools=target/packaging
packages=$PWD/target/packages
[[ -x $tools/bin/maturin ]] || {
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'maturin>=1.9,<2' ziglang
}
export PATH=$PWD/$tools/bin:$PATH
rm -rf "$packages"
mkdir -p "$packages"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The program for $1, out of the wheel, as $2.
build() {
    local linking=()
    [[ $1 == *-linux-* ]] && linking=(--zig --compatibility manylinux2014)
    (
        cd packaging/wheel # maturin reads the pyproject.toml of the directory that it runs in
        maturin build --release --strip --locked --target "$1" ${linking[@]+"${linking[@]}"} --out "$work/$1"
    )
    python3 -m zipfile -e "$work/$1"/*.whl "$work/$1/wheel"
    install -m 755 "$work/$1/wheel/tealight_cli-$version.data/scripts/tealight" "$2"
    cp "$work/$1"/*.whl "$packages"
}

# Runs the program $2 for the target $1.
run() {
    local target=$1 program=$2
    shift 2
    if [[ ${target%%-*} == "${host%%-*}" ]]; then
        "$program" "$@"
    else
        "qemu-${target%%-*}-static" -L "/usr/${target/-unknown/}" "$program" "$@"
    fi
}

# What surrounds the program: licences, manual pages, completions, below $2.
surround() {
    local target=$1 root=$2
    mkdir -p "$root/man" "$root/completions"
    run "$target" "$root/tealight" man "$root/man" >/dev/null
    run "$target" "$root/tealight" completions bash >"$root/completions/tealight"
    run "$target" "$root/tealight" completions zsh >"$root/completions/_tealight"
    run "$target" "$root/tealight" completions fish >"$root/completions/tealight.fish"
    cp LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md "$root"
}

# A Debian package of the folder $2 for the target $1.
debian() {
    local architecture root=$work/$1/debian
    case $1 in
    x86_64-*) architecture=amd64 ;;
    aarch64-*) architecture=arm64 ;;
    esac
    install -D -m 755 "$2/tealight" "$root/usr/bin/tealight"
    mkdir -p "$root/usr/share/man/man1" "$root/usr/share/doc/tealight" "$root/DEBIAN"
    cp "$2"/man/*.1 "$root/usr/share/man/man1"
    gzip -9 -n "$root"/usr/share/man/man1/*.1
    install -D -m 644 "$2/completions/tealight" "$root/usr/share/bash-completion/completions/tealight"
    install -D -m 644 "$2/completions/_tealight" "$root/usr/share/zsh/vendor-completions/_tealight"
    install -D -m 644 "$2/completions/tealight.fish" "$root/usr/share/fish/vendor_completions.d/tealight.fish"
    cat LICENSE-MIT LICENSE-APACHE >"$root/usr/share/doc/tealight/copyright"
    gzip -9 -n -c CHANGELOG.md >"$root/usr/share/doc/tealight/changelog.gz"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: tealight
Version: $version
Architecture: $architecture
Maintainer: The Tealight authors
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: libc6 (>= 2.17), libgcc-s1 | libgcc1
Section: science
Priority: optional
Description: train, compare and use small transformers
 Tealight trains small transformers from the command line with a TOML file,
 compares kinds of attention, and reads and writes models of Hugging Face.
CONTROL
    dpkg-deb --root-owner-group -Zxz --build "$root" "$packages/tealight_${version}_$architecture.deb" >/dev/null
}

# The folder $2 of $1 as an archive. Equal files give equal bytes: names in order, no owner, the time of the commit.
archive() {
    python3 - "$1" "$2" "$packages/$2.tar.gz" "$(git log -1 --format=%ct 2>/dev/null || echo 0)" <<'PYTHON'
import gzip, os, sys, tarfile

root, name, path, time = sys.argv[1:]

def plain(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = int(time)
    return entry

os.chdir(root)
with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
    tar.add(name, filter=plain)
PYTHON
}

for target in "${targets[@]}"; do
    name=tealight-$version-$target
    mkdir -p "$work/$target/$name"
    build "$target" "$work/$target/$name/tealight"
    surround "$target" "$work/$target/$name"
    archive "$work/$target" "$name"
    if [[ $target == *-linux-* ]] && command -v dpkg-deb >/dev/null; then
        debian "$target" "$work/$target/$name"
    fi
done
sed -e "s|@RELEASE@|$release|" -e "s|@VERSION@|$version|" packaging/install.sh >"$packages/install.sh"
chmod 755 "$packages/install.sh"
sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
(cd "$packages" && sums=$(sha256 -- *) && echo "$sums" >SHA256SUMS)
ls -l "$packages"
