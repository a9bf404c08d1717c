#!/bin/sh
# Makes a virtual environment of Debian's python3 with packages of PyPI, for tests that run other people's clients:
#   sh tests/tools/venv.sh FOLDER PACKAGE==VERSION...
# With everything there already it touches neither pip nor the net.
set -eu
folder=$1
shift
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
[ -x "$folder/bin/python3" ] || /usr/bin/python3 -m venv "$folder"
for p in "$@"; do
    grep -qx "$p" "$folder/.has" 2>/dev/null && continue
    "$folder/bin/pip" install -q --disable-pip-version-check "$p"
    echo "$p" >>"$folder/.has"
done
