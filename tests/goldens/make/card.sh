#!/usr/bin/env bash
# card.sh OUT CARD_TEST [GGUF]
# Goldens on this machine's card, then Hearth against them. CARD_TEST is the test program `card` built with `--features cuda`; GGUF is
# the demo's SmolLM2-135M, without which only the random model is compared. Needs Python with torch, transformers, peft, bitsandbytes,
# gguf and regex (requirements.txt). Parts go on where one fails.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "$1"); program=$(realpath "$2"); gguf=${3:-}
mkdir -p "$out"
make() {
  local start=$SECONDS log; log=$(mktemp)
  python3 "$here/card.py" "$out" "$@" >"$log" 2>&1
  echo "== card.py $*: exit $?, $((SECONDS - start)) s"
  grep -v -e 'Loading weights' -e '^$' "$log" | tail -20
}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 - <<'PYTHON'
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "bitsandbytes")), sep=", ")
PYTHON
tests=(peers)
if [ -z "$gguf" ]; then
  tests=(peers::a_checkpoint peers::weights peers::every)
  make model heads128
  make gradients heads128
else
  make model smollm2 --gguf "$gguf"
  make gradients smollm2 --gguf "$gguf" &
  make curve smollm2 --gguf "$gguf"
  make adamw8
  wait
fi
echo "== $program ${tests[*]}"
start=$SECONDS
HEARTH_CARD_GOLDENS="$out" "$program" "${tests[@]}" --nocapture --test-threads 1
echo "   $((SECONDS - start)) s"
