# Sourced by the soaks: where they run, the world that they run on, and how a run is killed.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RANDOM=${SEED:-0}
export OMP_NUM_THREADS=1 TQDM_DISABLE=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
python=${PYTHON:-.venv/bin/python} kills=${KILLS:-10}

make_world() { # folder
  world="$1/world" index="$1/index"
  [ -f "$world/dataset.json" ] || "$python" -m reflectune.data_builders.build_world --output "$world" --size tiny
  [ -f "$index/manifest.json" ] ||
    "$python" -m reflectune.retrieval.build_index --knowledge "$world/knowledge" --output "$index" --encoder miniature/clip
}

kill_tree() { # a process and all that it started
  local child
  for child in $(pgrep -P "$1"); do kill_tree "$child"; done
  kill -9 "$1" 2>/dev/null || true
}
