#!/usr/bin/env bash
# run.sh CARD_BENCHMARK SITE_TARBALL SCRATCH OUT
# Hearth's grid, then the peers' on the same card: OUT/hearth.csv and OUT/cells.jsonl.
# CARD_BENCHMARK is the program of `cargo bench --bench card --features cuda --no-run`; SITE_TARBALL is site.sh's, for a machine that
# brings Python 3.12 with torch 2.11 (CUDA 13), transformers 5.17, accelerate.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "$1"); tarball=$(realpath "$2"); scratch=$3; out=$4
mkdir -p "$scratch/ck" "$out"
out=$(realpath "$out")
cells="8b,2048,2,C0 8b,2048,2,plan,7942 8b,2048,2,N 8b,2048,2,plan,12288 8b,2048,2,plan,16384 8b,512,4,N 8b,512,1,N
  1b,2048,2,N 1b,2048,4,N 8b,20480,1,plan,8192 8b,40960,1,plan,12288"
arguments=()
for cell in $cells; do arguments+=(--cell "$cell"); done
"$program" "${arguments[@]}" --csv "$out/hearth.csv"
if [ ! -d "$scratch/site" ]; then
  tar xzf "$tarball" -C "$scratch" && python3 -m compileall -q -j 16 "$scratch/site" >/dev/null 2>&1
fi
export PYTHONPATH="$scratch/site" TRITON_CACHE_DIR="$scratch/triton" TORCHINDUCTOR_CACHE_DIR="$scratch/inductor"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 UNSLOTH_COMPILE_LOCATION="$scratch/unsloth_cache"
cd "$here"
for model in 1b 8b; do
  [ -s "$scratch/ck/$model/config.json" ] || python3 make_ckpt.py --model "$model" --out "$scratch/ck/$model" &
done
wait
python3 drive.py --plan grid.json --ckpts "$scratch/ck" --out "$out" --deadline 300 --loaded 8
