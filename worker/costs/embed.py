"""Writes the tables of costs as C, for the program to carry: embed.py OUT.c FILE.. (worker/engine/costs_tables.h)."""

import json
import os
import sys

with open(sys.argv[1], "w", encoding="utf-8") as out:
    out.write('#include "worker/engine/costs_tables.h"\n\n#include <stddef.h>\n\nconst struct costs_table costs_tables[] = {\n')
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as f:
            text = json.dumps(json.load(f), separators=(",", ":"))
        out.write(f"    {{{json.dumps(os.path.basename(path))}, {json.dumps(text)}}},\n")
    out.write("    {NULL, NULL},\n};\n")
