#!/bin/sh
# Makes the folder of PyPI packages that tests import (tests/requirements.txt): build-run/venv. Does nothing when it is
# up to date, so that a machine without a network can run the tests again.
#
#   sh tests/tools/venv.sh
set -eu
cd "$(dirname "$0")/../.."
dir=build-run/venv
if [ -f "$dir/stamp" ] && cmp -s "$dir/stamp" tests/requirements.txt; then
    exit 0
fi
rm -rf "$dir"
mkdir -p build-run
/usr/bin/python3 -m venv --system-site-packages "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt
cp tests/requirements.txt "$dir/stamp"
