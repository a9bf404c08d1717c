#!/bin/sh
# From a fresh Debian 12 to a streamed chat answer: installs packages, builds, serves the demo model on this machine
# and asks it one question. Started from a terminal, it then goes on serving until Ctrl-C; otherwise, or with --once,
# it stops. Can be run again at any time; every step then does only what is left to do.
#
#   sh deploy/quickstart.sh [--once] [QUESTION]
set -eu
cd "$(dirname "$0")/.."
# Debian's own python3, meson and gcc, whatever else comes first on the user's path.
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:$PATH
. deploy/packages.sh

once=
[ -t 0 ] && [ -t 1 ] || once=yes
if [ "${1:-}" = --once ]; then
    once=yes
    shift
fi
question=${1:-What is 12 + 7?}
model=tests/models/demo
work=$(mktemp -d)
server=

say() { printf '%s\n' "$*"; }
die() {
    say "quickstart: $*" >&2
    exit 1
}
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# quiet LOG COMMAND...: its output is shown only when it fails.
quiet() {
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        die "failed: $*"
    }
}

# Two ports nobody listens on, 8000 and 8001 if they are free.
ports() {
    /usr/bin/python3 - <<'PY'
import socket
def bind(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    return s
def pick(port):
    try:
        return bind(port)
    except OSError:
        return bind(0)
print(*[s.getsockname()[1] for s in [pick(8000), pick(8001)]])
PY
}

# Waits until the server would answer a request; fails as soon as it has ended.
wait_ready() {
    until curl -fsS -o "$work/ready" "http://127.0.0.1:$port/readyz" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || {
            cat "$work/server.log" >&2
            die "the server ended before it was ready"
        }
        sleep 0.1
    done
}

# Prints the text of a stream of chat chunks as it comes.
show() {
    /usr/bin/python3 -c '
import json, sys
done = False
for line in sys.stdin.buffer:
    line = line.decode().rstrip("\n")
    if line == "data: [DONE]":
        done = True
    elif line.startswith("data: "):
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit("the server said: " + event["error"]["message"])
        for choice in event["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    elif line.startswith("{"):
        sys.exit("the server said: " + json.loads(line)["error"]["message"])
print()
sys.exit(0 if done else "the answer broke off")
'
}

say "1/4 packages"
# shellcheck disable=SC2086  # lists of words
packages_need "$work/apt.log" $packages_build $packages_talk || exit 1

say "2/4 build (the first takes a few minutes)"
[ -f build/build.ninja ] || quiet "$work/setup.log" meson setup build
quiet "$work/build.log" ninja -C build railyard railyard-worker
[ -f "$model/config.json" ] || die "the demo model is missing: $model/config.json"

say "3/4 server"
ports >"$work/ports"
read -r port ops_port <"$work/ports"
mkdir -m 700 "$work/run"
build/railyard serve "$model" "--api.listen=127.0.0.1:$port" "--ops.listen=127.0.0.1:$ops_port" \
    "--run.dir=$work/run" --drain.settle_s=0 >"$work/server.log" 2>&1 &
server=$!
wait_ready

say "4/4 one question"
say
say "> $question"
body=$(/usr/bin/python3 -c '
import json, sys
print(json.dumps({"messages": [{"role": "user", "content": sys.argv[1]}], "stream": True}))' "$question")
curl -sSN "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" | show ||
    die "no whole answer came"
say
if [ -n "$once" ]; then
    say "It works. To serve the model: build/railyard serve $model"
    say "and to talk to it:"
    port=8000
else
    say "The server goes on until Ctrl-C. In another terminal:"
fi
say
say "curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\"
say "  -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}],\"stream\":true}'"
[ -n "$once" ] || wait "$server"
