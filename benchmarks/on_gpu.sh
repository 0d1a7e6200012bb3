#!/usr/bin/env bash
# What needs a GPU, in parts, on a machine that may be bare (no git, nothing can be installed, no data):
#
#   bash benchmarks/on_gpu.sh tests speed            # the CUDA tests, eight processes; then the times of all losses
#   bash benchmarks/on_gpu.sh tiles                  # which tiles serve ragged bags best
#   bash benchmarks/on_gpu.sh unpack                 # decode the shards of data sets that lie in carry/
#   bash benchmarks/on_gpu.sh sweep:cifar10:500      # the paper's grid for 500 seconds
#   bash benchmarks/on_gpu.sh board:cifar10:500:--preset:full:--methods:self-training:--bag-sizes:128,1024   # leaderboard
#   bash benchmarks/on_gpu.sh behind:sweep:cifar10:1500 collect:500   # in the background, over several calls
#   bash benchmarks/on_gpu.sh pretrain:cifar10:0     # features without proportions (seed 0), as board: makes or has made
#   bash benchmarks/on_gpu.sh restore                # what pretrain: left elsewhere, in carry/pretrained-*, for board: here
#   bash benchmarks/on_gpu.sh from_kl:cifar10:16     # self-training without pretraining, in bags of 16
#   bash benchmarks/on_gpu.sh caches                 # what torch.compile made, to carry as carry/caches.tgz (not tried yet)
#   bash benchmarks/on_gpu.sh cost                   # what an epoch of self-training takes, whatever the bag size
#
# Every part has a time limit of its own, since a kernel that hangs would cost all the rest, and leaves what it made
# under OUT (default: on_gpu/): logs, and archives that unpack in the root of the repository. A sweep continues where it
# stopped: on the same machine at once, elsewhere when what it left was unpacked. COMMIT names the commit where there is no git.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-on_gpu}
SCRATCH=${SCRATCH:-/tmp/bagwise}
mkdir -p "$OUT" "$SCRATCH/data"
export PYTHONPATH=src PYTHONUNBUFFERED=1 BAGWISE_DATA="$SCRATCH/data" BAGWISE_COMMIT="${COMMIT:-}"
export TORCHINDUCTOR_CACHE_DIR="$SCRATCH/inductor" TRITON_CACHE_DIR="$SCRATCH/triton"

tests() { # eight at a time: they wait for compilers on the host, not for the GPU
  local ids="$SCRATCH/ids" pids=() failed=0 part
  python3 -m pytest -m cuda --collect-only -q tests/{kernels,training,probe,self_training}/test_cuda.py | grep '::' > "$ids"
  [ -s "$ids" ] || { echo "no test was collected"; return 1; } # pytest without names would run everything
  rm -f "$ids".*
  split --number=r/8 "$ids" "$ids."
  for part in "$ids".*; do
    timeout 300 xargs -d '\n' -a "$part" python3 -m pytest -q -p no:cacheprovider > "$part.log" 2>&1 &
    pids+=($!)
  done
  for part in "${pids[@]}"; do wait "$part" || failed=1; done
  cat "$ids".*.log > "$OUT/cuda-tests.log"
  grep -hE '^(FAILED|ERROR)|(passed|failed|skipped).* in ' "$ids".*.log
  return $failed
}

speed() { # carry/peers may hold OTT-JAX and POT, as `pip install --target` leaves them
  PYTHONPATH=src:carry/peers timeout 300 python3 benchmarks/gpu.py --record "$OUT/gpu.json" 2>&1 | tee "$OUT/gpu.log"
}

tiles() { # other constants for ragged bags
  timeout 200 python3 benchmarks/gpu_tiles.py 2>&1 | tee "$OUT/gpu-tiles.log"
}

unpack() { # official layouts, from the shards that have arrived so far
  local set
  [ -f carry/caches.tgz ] && tar -xzf carry/caches.tgz -C "$SCRATCH"
  mkdir -p "$SCRATCH/shards"
  cp -r carry/. "$SCRATCH/shards/"
  for set in cifar10 cifar100; do
    [ "$(find "$SCRATCH/shards/$set" -name 'exact_*' 2> /dev/null | wc -l)" -eq 6 ] || continue
    timeout 150 python3 benchmarks/decode_shards.py "$set" "$SCRATCH/shards" "$SCRATCH/data" &&
      mv "$SCRATCH/shards/$set" "$SCRATCH/shards/$set-decoded" &
  done
  wait
}

sweep() { cells reproduce "$@"; }   # DATASET SECONDS [OPTION...]
board() { cells benchmark "$@"; }   # likewise

cells() { # COMMAND DATASET SECONDS [OPTION...]: processes side by side pass over each other's cells
  local command=$1 set=$2 seconds=$3 log="$OUT/$1-$2-$$.log"
  shift 3
  nvidia-cuda-mps-control -d 2> /dev/null # processes share the GPU instead of taking turns; it ends with the machine
  timeout $((seconds + 60)) python3 -m bagwise "$command" "$set" --max-seconds "$seconds" "$@" >> "$log" 2>&1
  tail -n 30 "$log"
}

tree() { # a copy of the tree, made once: what works there outlives this call, but not the machine
  [ -d "$SCRATCH/tree" ] || { mkdir "$SCRATCH/tree" && cp -r benchmarks src tests results README.md pyproject.toml "$SCRATCH/tree/"; }
}

behind() { # PART: starts it in a copy of the tree, once those before it have ended, and goes on at once
  tree
  (cd "$SCRATCH/tree" && OUT=on_gpu setsid nohup flock "$SCRATCH/one-by-one" \
    bash "$SCRATCH/tree/benchmarks/on_gpu.sh" "$(IFS=:; echo "$*")" > /dev/null 2>&1 < /dev/null &)
}

collect() { # SECONDS: brings back what the parts behind have made so far, until they end or the time is up
  local end=$((SECONDS + $1)) made="$OUT/behind.tgz"
  while :; do
    tar -czf "$made.new" -C "$SCRATCH/tree" --exclude=.work --exclude='*.png' --exclude='*.svg' --exclude='*.html' results on_gpu
    mv "$made.new" "$made" # whole at any moment, should the call be cut off
    [ "$SECONDS" -lt "$end" ] && pgrep -f "^flock $SCRATCH/" > /dev/null || break
    sleep 15
  done
  tail -n 4 "$SCRATCH"/tree/on_gpu/*.log
  nvidia-smi --query-gpu=power.draw,clocks.sm,memory.used --format=csv
}

pretrain() { # DATASET SEED; as the leaderboard's preset full does, or what that has left
  tree
  timeout 500 python3 benchmarks/self_training.py pretrain --dataset "$1" --seed "$2" --records "$SCRATCH/tree/results" \
    --out "$OUT/pretrained-$1-$2" 2>&1 | tee "$OUT/pretrain-$1-$2.log"
}

restore() { # what pretrain left elsewhere, for board: here
  local pretrained
  tree
  for pretrained in carry/pretrained-*; do
    python3 benchmarks/self_training.py restore --pretrained "$pretrained" --records "$SCRATCH/tree/results"
  done
}

from_kl() { # DATASET BAG_SIZE
  tree
  timeout 600 python3 benchmarks/self_training.py from-kl --dataset "$1" --bag-size "$2" \
    --out "$SCRATCH/tree/results/benchmarks/from_kl" 2>&1 | tee "$OUT/from-kl-$1-$2.log"
}

caches() {
  tar -czf "$OUT/caches.tgz" -C "$SCRATCH" inductor triton
}

cost() { # of an epoch of self-training, against the bag size
  timeout 200 python3 benchmarks/self_training.py epoch-cost --record "$OUT/self_training_epoch.json" \
    2>&1 | tee "$OUT/epoch-cost.log"
}

status=0
for part in "$@"; do
  IFS=: read -ra words <<< "$part"
  started=$SECONDS
  "${words[@]}" || { echo "$part: NOT all of it went well"; status=1; }
  echo "$part: $((SECONDS - started)) s"
done
exit $status
