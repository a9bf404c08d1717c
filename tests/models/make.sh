#!/bin/sh
# Makes the demo model and everything that comes from it. One GPU with torch, transformers, tokenizers, safetensors.
#   make.sh MODEL_DIR REFERENCE_DIR QUESTIONS_FILE [options of train.py]
# train.py leaves with status 3 when --piece-seconds are over: run again with --resume.
set -e
here=$(cd "$(dirname "$0")" && pwd)
model=$1; reference=$2; questions=$3; shift 3
mkdir -p "$model"
[ "$model/chat_template.jinja" -ef "$here/demo/chat_template.jinja" ] || cp "$here/demo/chat_template.jinja" "$model/"
python3 "$here/generate.py" --overlap "${OVERLAP:-300000}" --json "$model/overlap.json" > "$model/overlap.txt" & counting=$!
python3 "$here/train.py" --out "$model" "$@" || { status=$?; kill $counting; exit $status; }
python3 "$here/evaluate.py" --model "$model" --n "${EVAL_N:-50}"
python3 "$here/../golden/demo/make_reference.py" --model "$model" --out "$reference"
python3 "$here/make_questions.py" --model "$model" > "$questions"
wait $counting
python3 "$here/card.py" --model "$model"
