#!/bin/sh
# Gathers what tests/gpu/run.sh needs on a machine that can fetch and build nothing: programs, stripped, and the libraries that they
# were linked with.
#
#   sh tests/gpu/pack.sh BUILD DIR     then, there: sh DIR/run.sh --pack DIR --source SOURCE
set -eu
[ $# = 2 ] || { echo "usage: sh tests/gpu/pack.sh BUILD DIR" >&2; exit 2; }
build=$1 dir=$2 here=$(dirname "$0")
programs="railyard railyard-worker tests/gpu/engine_gpu tests/gpu/kernels_gpu tests/gpu/ops_bench tests/unit/unit_worker_exact tests/unit/unit_worker_draft tests/unit/unit_worker_rewind
    tests/unit/unit_kernels_draft tests/golden/demo/golden_demo_drafted"

mkdir -p "$dir/bin" "$dir/lib"
for p in $programs; do
    [ -x "$build/$p" ] || { echo "wanted $build/$p: build it first" >&2; exit 1; }
    strip -o "$dir/bin/$(basename "$p")" "$build/$p"
    # The C library stays that of the machine; all else comes along.
    ldd "$build/$p" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' |
        while read -r lib; do cp -L "$lib" "$dir/lib/"; done
done
cp "$here"/*.sh "$here"/*.py "$dir/"
du -sh "$dir"
