#!/usr/bin/env bash
# Kills probing ten times at random moments with one process, ten times with two, and compares with a run that wasn't.
#   bash scripts/soak_probe.sh [folder]     KILLS=3 LIMIT=24 SEED=1 change how much and when
set -euo pipefail
source "$(dirname "$0")/soak.sh"
folder=${1:-runs/soak_probe} limit=${LIMIT:-96}
make_world "$folder"
settings=(--dataset "$world" --index "$index" --model miniature/llava --device cpu --summary sentences --samples 1
  --documents 5 --max_new_tokens 8 --window 8 --batch_questions 4 --limit "$limit")

rm -rf "$folder"/straight "$folder"/killed-1 "$folder"/killed-2

probe() { # processes, output
  if [ "$1" = 1 ]; then
    exec "$python" data_builders/probe.py "${settings[@]}" --output "$2"
  fi
  exec "$python" -m accelerate.commands.launch --config_file configs/accelerate/cpu_2_processes.yaml \
    --main_process_port 0 data_builders/probe.py "${settings[@]}" --output "$2"
}

rows() { { cat "$1"/log-*.jsonl 2>/dev/null || true; } | wc -l; }

(probe 1 "$folder/straight") >"$folder/straight.log" 2>&1
for processes in 1 2; do
  output="$folder/killed-$processes"
  for number in $(seq "$kills"); do
    (probe "$processes" "$output") >"$folder/killed-$processes.log" 2>&1 &
    process=$!
    before=$(rows "$output")
    # Half of the kills come before any new row, at starting or loading; the others some rows or milliseconds later.
    if ((number % 2)); then
      sleep "$((RANDOM % 8)).$((RANDOM % 10))"
    else
      wanted=$((before + 1 + RANDOM % 9))
      while kill -0 "$process" 2>/dev/null && [ "$(rows "$output")" -lt "$wanted" ] && [ ! -f "$output/probes.json" ]; do
        sleep 0.02
      done
      sleep "0.0$((RANDOM % 10))"
    fi
    kill_tree "$process"
    wait "$process" 2>/dev/null || true
    echo "$processes process(es), kill $number: $(rows "$output") rows"
  done
  (probe "$processes" "$output") >"$folder/killed-$processes.log" 2>&1
  diff -r "$folder/straight" "$output" && echo "$processes process(es): $kills kills, the same bytes"
done
