"""Writes a file as a C array, for what a program carries with it: embed.py FILE OUT.c NAME [HEADER]."""

import sys

path, out, name = sys.argv[1:4]
with open(path, "rb") as f:
    data = f.read()
with open(out, "w", encoding="utf-8") as f:
    f.write("".join(f'#include "{h}"\n' for h in sys.argv[4:]))
    f.write(f"const unsigned char {name}[] = {{\n")
    for i in range(0, len(data), 24):
        f.write(",".join(str(b) for b in data[i:i + 24]) + ",\n")
    f.write(f"}};\nconst unsigned long {name}_bytes = sizeof {name};\n")
