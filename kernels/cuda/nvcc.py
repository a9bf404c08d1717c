"""Compiles one .cu file for one architecture, or takes the same compilation from the cache.

  nvcc.py NVCC ROOT ARCH OUT DEPFILE FILE.cu     ARCH: 80, 90a, ..; ptx for compute_80 PTX

Every build folder needs the same files for seven architectures, so results are kept in ~/.cache/railyard/nvcc under a
hash of the compiler, the flags, the source and every file of ours that it includes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys

# No contraction: a*b+c is fused where the source says fmaf() and nowhere else, so that twins can give the same bits.
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true",
         "-Werror", "all-warnings"]


def flags_of(arch):
    if arch == "ptx":
        return ["-ptx", "-gencode", "arch=compute_80,code=compute_80"]
    return ["-cubin", "-gencode", f"arch=compute_{arch},code=sm_{arch}"]


def sources(path, root, seen):
    """The file and every file of ours that it includes, in the order met."""
    if path in seen:
        return seen
    with open(path, "rb") as f:
        text = f.read()
    seen[path] = text
    for name in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        for folder in (os.path.dirname(path), root):
            full = os.path.normpath(os.path.join(folder, name.decode()))
            if os.path.isfile(full):
                sources(full, root, seen)
                break
    return seen


def cache_path(key):
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "railyard", "nvcc", key)


def keep(out, path):
    """A copy in the cache; whoever cannot write there goes without."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{os.getpid()}"
        shutil.copyfile(out, part)
        os.replace(part, path)
    except OSError:
        pass


def main():
    nvcc, root, arch, out, depfile, cu = sys.argv[1:]
    root, cu = os.path.abspath(root), os.path.abspath(cu)
    files = sources(cu, root, {})
    with open(depfile, "w", encoding="utf-8") as f:
        f.write(out + ": " + " ".join(p.replace(" ", "\\ ") for p in files) + "\n")
    command = [nvcc, *FLAGS, *flags_of(arch), "-I", root]
    digest = hashlib.sha256()
    digest.update(subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout)
    digest.update(" ".join(command[1:-1]).encode())
    for path, text in files.items():
        digest.update(os.path.relpath(path, root).encode() + b"\0" + text)
    cached = cache_path(digest.hexdigest())
    if os.path.isfile(cached):
        shutil.copyfile(cached, out)
        return 0
    code = subprocess.run([*command, "-o", out, cu], check=False).returncode
    if not code:
        keep(out, cached)
    return code


if __name__ == "__main__":
    sys.exit(main())
