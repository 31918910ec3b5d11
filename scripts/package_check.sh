#!/usr/bin/env bash
# Tries what scripts/package.sh has built, each in a place of its own that holds nothing else, and removes it again:
# the wheel in an empty virtual environment, the archive by install.sh in an empty home, and, as root on Debian, the
# Debian package in an empty chroot. Each trains a model, answers a request, and is uninstalled.
#
#     scripts/package_check.sh                      # the wheel, the archive, and the symbols of glibc that they need
#     scripts/package_check.sh --chroot DIRECTORY   # also the Debian package, in a Debian made by debootstrap
#     scripts/package_check.sh --emulate            # also under processors without AVX, and of ARM (qemu-user): minutes each
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=$PWD/target/packages
host=$(rustc -vV | sed -n 's/^host: //p')
chroot=
emulate=
while (($#)); do
    case $1 in
    --chroot)
        chroot=${2:?the directory that follows --chroot is missing}
        shift 2
        ;;
    --emulate)
        emulate=1
        shift
        ;;
    *)
        echo "error: unknown argument $1" >&2
        exit 2
        ;;
    esac
done
work=$(mktemp -d)
token=a-token-of-this-check
server=
finish() {
    [[ -n "$server" ]] && kill "$server" 2>/dev/null
    [[ -n "$chroot" ]] && umount "$chroot/proc" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT

# Trains, evaluates and serves with the command "$@", in an empty directory.
use() {
    local directory=$work/use
    rm -rf "$directory"
    mkdir "$directory"
    (
        cd "$directory"
        "$@" train weather/dotmod --steps 120 --quiet >/dev/null
        "$@" evaluate runs/dotmod >/dev/null
        "$@" serve runs --port 0 --token "$token" >served 2>&1 &
        echo $! >pid
    )
    server=$(<"$directory/pid")
    local address=
    for _ in $(seq 300); do
        address=$(grep -o 'http://127.0.0.1:[0-9]*' "$directory/served" | head -1) && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    [[ -n "$address" ]] || {
        cat "$directory/served" >&2
        exit 1
    }
    python3 - "$address/health" "$token" <<'PYTHON'
import sys, urllib.request
url, token = sys.argv[1:]
request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
assert urllib.request.urlopen(request, timeout=30).status == 200
PYTHON
    kill "$server"
    wait "$server" 2>/dev/null || true
    server=
}

said() { # what -V says after "installed"
    "$@" -V | sed -n 's/^installed *//p'
}

expect() {
    [[ "$1" == "$2" ]] || {
        echo "error: expected \`$2\`, found \`$1\`" >&2
        exit 1
    }
}

echo "── wheel"
wheel=$(ls "$packages"/*"${host%%-*}"*.whl 2>/dev/null || ls "$packages"/*arm64*.whl)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-index "$wheel"
expect "$(said "$work/venv/bin/tealight")" "from a wheel"
use "$work/venv/bin/tealight"
use "$work/venv/bin/python" -m tealight_cli
program=$work/tealight
cp "$work/venv/bin/tealight" "$program"
"$work/venv/bin/pip" uninstall --quiet --yes tealight-cli
[[ ! -e $work/venv/bin/tealight ]]

echo "── archive, by install.sh"
mkdir "$work/home"
HOME=$work/home TEALIGHT_RELEASE=$packages "$packages/install.sh" >/dev/null
installed=$work/home/.local/bin/tealight
expect "$(said "$installed")" "as a single file"
use "$installed"
# An archive that is not what SHA256SUMS says installs nothing.
rm "$installed"
mkdir "$work/bad"
cp "$packages/SHA256SUMS" "$work/bad"
for archive in "$packages"/*.tar.gz; do echo damaged >"$work/bad/${archive##*/}"; done
if HOME=$work/home TEALIGHT_RELEASE=$work/bad "$packages/install.sh" >/dev/null 2>&1 || [[ -e $installed ]]; then
    echo "error: a damaged archive was installed" >&2
    exit 1
fi

if command -v objdump >/dev/null && [[ $host == *-linux-gnu ]]; then
    newest=$(objdump -T "$program" | grep -o 'GLIBC_2\.[0-9]*' | sort -u -t. -k2 -n | tail -1)
    echo "── needs $newest"
    ((${newest#GLIBC_2.} <= 17))
fi

if [[ -n "$emulate" ]]; then
    # Nehalem has SSE4.2 and neither AVX nor fused multiply-add; Haswell has AVX2.
    for processor in Nehalem Haswell; do
        echo "── under qemu, as $processor"
        QEMU_CPU=$processor qemu-x86_64-static "$program" -V | sed -n 's/^instructions *//p'
        QEMU_CPU=$processor use qemu-x86_64-static "$program"
    done
    archive=$(ls "$packages"/*-aarch64-unknown-linux-gnu.tar.gz 2>/dev/null || true)
    if [[ -n "$archive" ]]; then
        echo "── under qemu, as ARM"
        tar -xzf "$archive" -C "$work"
        arm=$(echo "$work"/tealight-*-aarch64-unknown-linux-gnu/tealight)
        qemu-aarch64-static -L /usr/aarch64-linux-gnu "$arm" -V | sed -n 's/^instructions *//p'
        use qemu-aarch64-static -L /usr/aarch64-linux-gnu "$arm"
    fi
fi

if [[ -n "$chroot" ]]; then
    echo "── Debian package, in $chroot"
    deb=$(ls "$packages"/tealight_*_"$(dpkg --print-architecture)".deb)
    mount -t proc proc "$chroot/proc" # by which the program finds its own file
    cp "$deb" "$chroot/tmp/tealight.deb"
    chroot "$chroot" dpkg --install /tmp/tealight.deb >/dev/null
    expect "$(said chroot "$chroot" tealight)" "from a Debian package"
    chroot "$chroot" sh -c 'cd /tmp && tealight train weather/dotmod --steps 120 --quiet && tealight evaluate runs/dotmod' \
        >/dev/null
    chroot "$chroot" sh -c 'test -f /usr/share/man/man1/tealight.1.gz && dpkg --remove tealight' >/dev/null
    [[ ! -e $chroot/usr/bin/tealight ]]
    rm -rf "$chroot/tmp/tealight.deb" "$chroot/tmp/runs"
fi
echo "all installations work"
