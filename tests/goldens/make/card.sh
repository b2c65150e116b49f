#!/usr/bin/env bash
# card.sh OUT CARD_TEST [GGUF [PART...]]
# Goldens on this machine's card, then Hearth against them. CARD_TEST is the test program `card` built with `--features cuda`; GGUF is
# the demo's SmolLM2-135M, without which ('') the random model is compared, as far as weights and gradients. Parts, all by default:
# weights, gradients, curve, adamw8. Needs Python with torch, transformers, peft, bitsandbytes, gguf and regex (requirements.txt).
# Parts go on where one fails.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "$1"); program=$(realpath "$2"); gguf=${3:-}
parts=("${@:4}")
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
if [ -z "$gguf" ]; then
  name=heads128; source=()
  [ ${#parts[@]} -gt 0 ] || parts=(weights gradients)
else
  name=smollm2; source=(--gguf "$gguf")
  [ ${#parts[@]} -gt 0 ] || parts=(weights gradients curve adamw8)
fi
make model $name "${source[@]}"
tests=()
for part in "${parts[@]}"; do
  case $part in
    weights) make weights $name & tests+=(peers::a_checkpoint peers::weights) ;;
    gradients) make gradients $name "${source[@]}" & tests+=(peers::every_gradient) ;;
    curve) make curve $name "${source[@]}"; tests+=(peers::two_hundred_steps) ;;
    # After `curve`, where that is a part too: it then replays its gradients.
    adamw8) make adamw8 $name "${source[@]}"; tests+=(peers::a_hundred_steps) ;;
    *) echo "no part '$part': weights, gradients, curve or adamw8"; exit 2 ;;
  esac
done
wait
echo "== $program ${tests[*]}"
start=$SECONDS
HEARTH_CARD_GOLDENS="$out" "$program" "${tests[@]}" --nocapture --test-threads 1
echo "   $((SECONDS - start)) s"
