#!/usr/bin/env bash
# Builds an emulated CUDA driver (scripts/cuda_emulator/driver.cpp): libraries that replace those of CUDA for a build with
# `--features cuda`. The build runs on them without a GPU, slowly and with stricter checks. Requires CUDA's headers
# (CUDA_HOME) and Candle's sources in cargo's registry.
#
#     scripts/emulate_cuda.sh target/emulated-cuda
#     LD_LIBRARY_PATH=target/emulated-cuda tealight train configs/weather/markov.toml --device cuda
set -euo pipefail
output=$(realpath -m "${1:-target/emulated-cuda}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
headers=${CUDA_HOME:-/usr/local/cuda}/include
candle=$(cargo metadata --format-version 1 --features cuda | python3 -c '
import json, pathlib, sys
packages = json.load(sys.stdin)["packages"]
print(next(pathlib.Path(p["manifest_path"]).parent / "src" for p in packages if p["name"] == "candle-kernels"))')

mkdir -p "$output"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
emulator=scripts/cuda_emulator
flags=(-std=c++17 -O2 -fPIC -w -fno-strict-aliasing -U_FORTIFY_SOURCE "-I$headers" "-I$headers/cccl" "-I$candle" "-I$emulator")
as_candle=(-DNUMBER_BITS=0 -include candle.hpp -x c++)
n_jobs=$(nproc) jobs=()
for file in affine binary cast fill indexing reduce ternary unary; do
    # Kernels are looked up by name: append a registration of each to the file that defines it.
    "${CXX:-g++}" "${flags[@]}" "${as_candle[@]}" -DSHOW_KERNELS -E "$candle/$file.cu" |
        grep -oP 'a_kernel\s+void\s+\K\w+(?=\s*\()' | sort -u |
        sed 's/.*/static emulator::Registered registered_&("&", 0, \&&);/' > "$objects/$file.names"
    straight=$([[ $file == reduce ]] && echo false || echo true)
    printf '#include "%s"\n' "$candle/$file.cu" "$objects/$file.names" > "$objects/$file.cpp"
    "${CXX:-g++}" "${flags[@]}" "${as_candle[@]}" -DIS_STRAIGHT="$straight" -c "$objects/$file.cpp" -o "$objects/$file.o" &
    jobs+=($!)
    if ((${#jobs[@]} >= n_jobs)); then
        wait "${jobs[0]}"
        jobs=("${jobs[@]:1}")
    fi
done
for job in "${jobs[@]}"; do wait "$job"; done
"${CXX:-g++}" "${flags[@]}" -DNUMBER_BITS=0 -c "$emulator/driver.cpp" -o "$objects/driver.o"
# Candle's files define some functions more than once.
scripts/emulate_kernels.sh "$output/libcuda.so.1" "$objects"/*.o -Wl,-z,muldefs
for name in libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnvrtc.so.13; do
    ln -sf libcuda.so.1 "$output/$name"
done
"${CXX:-g++}" "${flags[@]}" -shared -o "$output/libnccl.so.2" "$emulator/nccl.cpp" -L"$output" -l:libcuda.so.1
