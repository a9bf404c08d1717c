#!/bin/sh
# Proves deploy/Containerfile where neither a registry nor a container runtime is at hand: with buildah, from a base made by
# debootstrap under the name that the Containerfile has. Then what is in the image runs: its own command by `buildah run`, and the
# containers of the Kubernetes overlay `cpu`, verbatim, on a read-only root as user 65532 without capabilities. Root on a Debian 12
# with buildah, debootstrap, kubectl, iproute2 and python3-yaml.
#
#   sh tests/tools/image.sh DIR [on|off]      DIR keeps the base for a second run; on: with the CUDA compiler (off)
set -eu
[ $# -ge 1 ] || { echo "usage: sh tests/tools/image.sh DIR [on|off]" >&2; exit 2; }
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}" BUILDAH_ISOLATION=chroot
source=$(cd "$(dirname "$0")/../.." && pwd)
dir=$1 cuda=${2:-off}
base=docker.io/library/debian:$(sed -n 's/^ARG DEBIAN=//p' "$source/deploy/Containerfile")
image=localhost/railyard-proof:$cuda

make_base() {
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk '$2 == "bookworm" {print $1; exit}')
    [ -e "$dir/root/etc/debian_version" ] ||
        debootstrap --variant=minbase --include=ca-certificates bookworm "$dir/root" "${mirror:-http://deb.debian.org/debian}"
    # The way to the net is this machine's: its proxies, and its word on whom to trust there.
    cp /etc/ssl/certs/ca-certificates.crt "$dir/root/etc/ssl/certs/"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$dir/root/etc/pip.conf"
    for f in /etc/apt/apt.conf.d/*proxy*; do
        [ ! -e "$f" ] || cp "$f" "$dir/root/etc/apt/apt.conf.d/"
    done
    empty=$(buildah from scratch)
    buildah add -q "$empty" "$dir/root" >/dev/null
    buildah commit -q "$empty" "$base" >/dev/null
    buildah rm "$empty" >/dev/null
}

build_image() {
    rm -rf "$dir/source"
    mkdir -p "$dir/source"
    git -C "$source" archive HEAD | tar -x -C "$dir/source"
    buildah bud --pull=never --layers -f "$dir/source/deploy/Containerfile" --build-arg "CUDA=$cuda" \
        --build-arg "COMMIT=$(git -C "$source" describe --always --abbrev=12)" -t "$image" "$dir/source"
}

# One command line for each container of the overlay, its $(NAME) replaced as kubelet does.
commands() {
    kubectl kustomize "$source/deploy/kubernetes/cpu" | /usr/bin/python3 -c '
import re, shlex, sys, yaml
pod = next(o for o in yaml.safe_load_all(sys.stdin) if o["kind"] == "Deployment")["spec"]["template"]["spec"]
for c in pod["initContainers"] + pod["containers"]:
    env = {e["name"]: e["value"] for e in c["env"]}
    print(c["name"], shlex.join(re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], w) for w in c["command"] + c["args"]))' >"$dir/commands"
}

# In a namespace of its own, whose ports and mounts end with it.
if [ "${IMAGE_INSIDE:-}" = yes ]; then
    container=$3 mounted=$4
    ip link set lo up
    ask() {
        for _ in $(seq 600); do
            curl -fs -o /dev/null http://127.0.0.1:8001/readyz && break
            sleep 0.1
        done
        curl -sS http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
            -d '{"messages":[{"role":"user","content":"What is 12 + 7?"}],"max_tokens":100,"temperature":0}' | grep -o '"content":"[^"]*"'
    }
    end() { # NAME PID
        kill "$2"
        wait "$2" && echo "$1: exit status 0" || { echo "$1: exit status $?"; exit 1; }
    }
    echo "== the image's own command, as user 65532"
    # buildah run has no default command; this is the Containerfile's.
    cmd=$(sed -n 's/^CMD \[\(.*\)\]$/\1/p' "$source/deploy/Containerfile" | tr -d '",')
    # shellcheck disable=SC2086  # a list of words
    buildah run "$container" -- /usr/local/bin/railyard $cmd >"$dir/serve.log" 2>&1 &
    buildah=$!
    ask
    kill "$(pgrep -f '^/usr/local/bin/railyard serve /usr/local/share' | head -n 1)"
    wait "$buildah" && echo "serve: exit status 0"

    echo "== the pod of the overlay cpu, on a read-only root"
    r=$dir/pod
    mkdir -p "$r"
    mount --bind "$mounted" "$r"
    mount -o remount,bind,ro "$r"
    mount -t proc proc "$r/proc"
    mount --rbind /dev "$r/dev"
    mount -t tmpfs -o mode=755 tmpfs "$r/run"
    mkdir "$r/run/railyard"
    mount -t tmpfs -o size=16m,gid=65532,mode=2777 tmpfs "$r/run/railyard"
    mount -t tmpfs -o mode=1777 tmpfs "$r/tmp"
    within() {
        exec env -i PATH=/usr/local/bin:/usr/bin:/bin /usr/sbin/chroot --userspec=65532:65532 "$r" \
            setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
    }
    (within sh -c 'id -u; touch /x 2>&1; grep CapEff /proc/self/status') || true
    while read -r name line; do
        eval "set -- $line"
        (within "$@") >"$dir/$name.log" 2>&1 &
        eval "pid_$(echo "$name" | tr - _)=$!"
    done <"$dir/commands"
    ask
    # shellcheck disable=SC2154  # pid_router: set by the loop
    (within sh -c "kill $pid_worker_0") # what docs/deploy.md says by kubectl exec; the image has no kill program
    wait "$pid_worker_0" && echo "worker-0: exit status 0"
    end router "$pid_router"
    exit
fi

[ "$(buildah images -q "$base" 2>/dev/null)" ] || make_base
build_image
commands
container=$(buildah from --pull=never "$image")
trap 'buildah rm "$container" >/dev/null' EXIT
echo "== $image"
buildah run "$container" -- /usr/local/bin/railyard version
buildah run "$container" -- /usr/local/bin/railyard-worker --version
IMAGE_INSIDE=yes unshare -m -n -p -f --mount-proc --kill-child sh "$0" "$dir" "$cuda" "$container" "$(buildah mount "$container")"
