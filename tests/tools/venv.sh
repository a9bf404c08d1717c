#!/bin/sh
# Makes the virtual environment with the PyPI packages that tests use (tests/requirements.txt), build-run/venv, and prints its
# folder. Once made, nothing is fetched. Several at once wait for one another.
#
#   sh tests/tools/venv.sh
set -eu
cd "$(dirname "$0")/../.."
venv=$PWD/build-run/venv
mkdir -p build-run
exec 9>build-run/venv.lock
flock 9
if ! cmp -s "$venv/ready" tests/requirements.txt; then
    rm -rf "$venv"
    /usr/bin/python3 -m venv --system-site-packages "$venv" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt >&2
    cp tests/requirements.txt "$venv/ready"
fi
echo "$venv"
