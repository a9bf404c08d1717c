#!/usr/bin/python3
"""format_test: every C and CUDA file of the project is as clang-format 14 writes it. Prints TAP."""
import os
import subprocess

TOP = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
FOLDERS = ("common", "kernels", "proto", "router", "tests", "worker")
ENDINGS = (".c", ".h", ".cu", ".cuh")
AT_ONCE = 50


def sources():
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(TOP, folder)):
            yield from (os.path.join(at, n) for n in sorted(names) if n.endswith(ENDINGS))


def badly_formatted(files):
    r = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *files], cwd=TOP, stderr=subprocess.PIPE, text=True)
    lines = [line for line in r.stderr.splitlines() if "error:" in line]
    return lines or (["clang-format-14 ended with %d" % r.returncode] if r.returncode else [])


print("1..1")
found = list(sources())
wrong = [line for i in range(0, len(found), AT_ONCE) for line in badly_formatted(found[i:i + AT_ONCE])]
print(f"# {len(found)} files")
for line in wrong[:20]:
    print("#", os.path.relpath(line, TOP))
print("ok 1 sources_are_formatted" if found and not wrong else "not ok 1 sources_are_formatted")
