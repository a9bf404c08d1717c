#!/bin/sh
# Makes the EXL3 packs of the demo model and of its sibling with experts, on this computer: some minutes of two cores.
#   make_packs.sh BUILD WORK DENSE MOE OUT
# BUILD: a build of the project; WORK: for calibration ids and moments, kept; DENSE, MOE: the plain models; OUT: gets demo-exl3 and
# demo-moe-exl3 but their cards, and is the folder that holds demo. Needs numpy; and tokenizers for the ids, unless WORK has calibration.json and held_out.json.
set -e
here=$(cd "$(dirname "$0")" && pwd)
build=$1; work=$2; dense=$3; moe=$4; out=$5
mkdir -p "$work" "$out"
[ -s "$work/calibration.json" ] || python3 "$here/calibration.py" --model "$here/demo" --count 150 > "$work/calibration.json"
[ -s "$work/held_out.json" ] || python3 "$here/calibration.py" --model "$here/demo" --count 60 --held-out > "$work/held_out.json"

pack() { # MODEL NAME [options of exl3_quantise]
    model=$1; name=$2; shift 2
    [ -s "$work/$name.moments" ] || /usr/bin/python3 "$here/../tools/moments.py" "$model" "$work/calibration.json" "$work/$name.moments" --rows 16000
    "$build/tests/tools/exl3_quantise" "$model" "$out/$name" --moments="$work/$name.moments" "$@" > "$work/$name.log"
    tail -n 2 "$work/$name.log"
    for f in tokenizer_config.json generation_config.json chat_template.jinja; do cp "$here/demo/$f" "$out/$name/"; done
    ln -sf ../demo/tokenizer.json "$out/$name/tokenizer.json"
    "$build/railyard-worker" inspect "$out/$name" > "$work/$name.inspect" && tail -n 1 "$work/$name.inspect"
}

# Mixers and MTP at 4 bits, MLPs at 3, the head at 6.
pack "$dense" demo-exl3 --codebook=mul1 --bits=4 --width='model.layers.*.mlp.*=3' --head-bits=6
# All at 4 bits but the routed experts of the text model, the head at 6.
pack "$moe" demo-moe-exl3 --codebook=mcg --bits=4 --width='model.layers.*.experts.*=3' --head-bits=6
/usr/bin/python3 "$here/perplexity.py" --worker "$build/railyard-worker" --ids "$work/held_out.json" "$dense" "$out/demo-exl3"
/usr/bin/python3 "$here/perplexity.py" --worker "$build/railyard-worker" --ids "$work/held_out.json" "$moe" "$out/demo-moe-exl3"
