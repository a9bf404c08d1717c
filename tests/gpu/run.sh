#!/bin/sh
# The whole GPU check in one call, without network; run.py says what it does and takes.
exec python3 "$(dirname "$0")/run.py" "$@"
