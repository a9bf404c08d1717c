"""Random checkpoints of other kinds behind the demo's tokeniser and template, for suites that run on every kind of model."""

import json
import os
import subprocess
import sys

# make_exl3.py's arguments (it passes make_tiny.py's on).
KINDS = {
    "exl3": "--widths 4,3.5,2,plain,8,5,1.5 --codebooks mul1,mcg,3inst --odd --layers 8 --hidden 256 --intermediate 512 --head-dim 64 "
            "--dk 32 --dv 32 --untied --head-width 6",
    "exl3-moe": "--moe mixed --experts 11 --top-k 3 --widths 4,plain,2.5 --layers 8 --hidden 256 --expert-width 128 --shared-width 128 "
                "--seed 4",
}


def make(kind, source, demo, folder):
    """Writes the checkpoint; its path."""
    out = os.path.join(folder, kind)
    subprocess.run([sys.executable, os.path.join(source, "tests/tools/make_exl3.py"), out, "--vocab", "4096",
                    *KINDS[kind].split()], check=True)
    with open(os.path.join(demo, "config.json")) as f, open(os.path.join(out, "config.json"), "r+") as g:
        config, ours = json.load(f), json.load(g)
        ours.update({key: config[key] for key in ("eos_token_id", "max_position_embeddings")})
        g.seek(0)
        json.dump(ours, g)
        g.truncate()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        os.symlink(os.path.join(demo, name), os.path.join(out, name))
    return out
