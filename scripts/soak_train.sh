#!/usr/bin/env bash
# Kills training ten times at random moments (in steps, while a checkpoint is written, while it is validated), resumes
# it each time, and compares weights and log with those of a run that wasn't killed, byte for byte.
#   bash scripts/soak_train.sh [full|lora] [folder]     KILLS=3 STEPS=24 SEED=1 change how much and when
set -euo pipefail
source "$(dirname "$0")/soak.sh"
method=${1:-full} folder=${2:-runs/soak_train} steps=${STEPS:-96}
data="$folder/reflection" straight="$folder/straight-$method" killed="$folder/killed-$method"
settings=(--config "configs/miniature/mr2ag_$method.yaml" --train_data "$data" --max_steps "$steps" --save_steps 3
  --logging_steps 1 --eval_data "$data" --eval_steps 4 --best_metric loss --cache_mib 64)

make_world "$folder"
for split in train val_unseen_question; do
  [ -f "$data/$split.parquet" ] ||
    "$python" -m reflectune.data_builders.build_mr2ag --config configs/miniature/mr2ag_data.yaml --dataset "$world" \
      --index "$index" --split "$split" --output "$data"
done
settings+=(--eval_split val_unseen_question)
rm -rf "$straight" "$killed"

train() { exec "$python" train/sft.py "${settings[@]}" --output_dir "$1"; }

logged() { { cat "$killed/log.jsonl" 2>/dev/null || true; } | wc -l; }

cut_off() { # a checkpoint that this process has begun to write and has not finished
  local checkpoint
  for checkpoint in "$killed"/checkpoint-*; do
    if [ ! -f "$checkpoint/run.json" ] && [ -n "$(find "$checkpoint" -newer "$killed.started" 2>/dev/null)" ]; then
      echo "${checkpoint##*/}"
    fi
  done
}

validating() { # the last row is the loss of a step after which validation comes (every fourth)
  local row
  row=$(tail -n 1 "$killed/log.jsonl" 2>/dev/null) && [[ "$row" =~ \"step\":\ ([0-9]+),.*\"loss\" ]] &&
    ((BASH_REMATCH[1] % 4 == 0))
}

wait_until() { # process, condition
  while kill -0 "$1" 2>/dev/null && ! eval "$2" && [ ! -f "$killed/run.json" ]; do sleep 0.02; done
}

trajectory() { # the log without what a clock measured
  grep -v '"train_runtime"' "$1/log.jsonl" | sed -E 's/, "tokens_per_second": [0-9]+//'
}

(train "$straight") >"$straight.log" 2>&1
for number in $(seq "$kills"); do
  touch "$killed.started"
  (train "$killed") >"$killed.log" 2>&1 &
  process=$! wanted=$(($(logged) + 3 + RANDOM % 9))
  case $((number % 4)) in
    0) aim=start && sleep "$((RANDOM % 8)).$((RANDOM % 10))" ;;
    1) aim=step && wait_until "$process" '[ "$(logged)" -ge "$wanted" ]' ;;
    2) aim=checkpoint && wait_until "$process" '[ -n "$(cut_off)" ]' ;;
    3) aim=validation && wait_until "$process" '[ "$(logged)" -ge "$wanted" ] && validating' ;;
  esac
  sleep "0.0$((RANDOM % 10))"
  kill_tree "$process"
  wait "$process" 2>/dev/null || true
  hit=$(cut_off)
  if [ -z "$hit" ] && [ "$killed/log.jsonl" -nt "$killed.started" ] && validating; then hit=validation; fi
  echo "$method, kill $number, aimed at $aim: $(logged) rows logged, cut off: ${hit:-step or start}"
done
(train "$killed") >"$killed.log" 2>&1
for file in "$straight"/*model.safetensors; do cmp "$file" "$killed/${file##*/}"; done
diff <(trajectory "$straight") <(trajectory "$killed")
echo "$method: $kills kills, the same weights and the same $(trajectory "$killed" | wc -l) rows, byte for byte"
