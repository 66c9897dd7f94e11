#!/usr/bin/env bash
# The main job on real text: 8 ranks as replicate 2 x shard 2 x tp 2 train llama-1m on the King James Bible.
set -eu
bin=${1:-bin}
dir=runs/demo
rm -rf "$dir"
DMUON_TRAIN=$bin/dmuon-train scripts/run.sh 8 configs/kjv-3d.yaml run.dir="$dir"
echo
echo "log:        $dir/log.jsonl"
echo "checkpoint: $(ls -d "$dir"/checkpoints/step-* | tail -1)"
