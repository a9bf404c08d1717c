#!/bin/sh
# Makes the virtual environment with OpenAI's Python client, unmodified from PyPI, that tests/e2e/openai_test.py runs
# in, and prints its python. Once made, nothing is fetched. Several at once wait for one another.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
venv=$here/.cache/openai-venv
version=3.57.0
mkdir -p "$here/.cache"
exec 9>"$here/.cache/openai-venv.lock"
flock 9
if [ "$(cat "$venv/ready" 2>/dev/null)" != "$version" ]; then
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv" >&2
    "$venv/bin/pip" install -q --disable-pip-version-check "openai==$version" >&2
    echo "$version" >"$venv/ready"
fi
echo "$venv/bin/python"
