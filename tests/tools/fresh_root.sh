#!/bin/sh
# Proves the README's two commands on a fresh Debian 12: makes one in DIR (kept for a second run; delete it for a new
# proof), puts a clean copy of the committed sources there, without git's folder as a tarball would have it, and runs
# the commands inside. Root on a Debian-like machine with debootstrap. The package mirror is this machine's own.
#
#   sh tests/tools/fresh_root.sh DIR [quickstart|run]...
set -eu
[ $# -ge 1 ] || { echo "usage: sh tests/tools/fresh_root.sh DIR [quickstart|run]..." >&2; exit 2; }
source=$(cd "$(dirname "$0")/../.." && pwd)
root=$1
shift
[ $# -gt 0 ] || set -- quickstart run

# shellcheck disable=SC2016  # apt-get expands it
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk '$2 == "bookworm" {print $1; exit}')
mirror=${mirror:-http://deb.debian.org/debian}

# A mount namespace of its own: the mounts end with the last process, whatever happens.
if [ "${FRESH_ROOT_INSIDE:-}" != yes ]; then
    [ -e "$root/etc/debian_version" ] ||
        debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # The way to the net is this machine's: its proxies, and its word on whom to trust there.
    cert=${PIP_CERT:-$(pip config get global.cert 2>/dev/null || true)}
    [ -z "$cert" ] || cp "$cert" "$root/etc/machine-ca.crt"
    for f in /etc/apt/apt.conf.d/*proxy*; do
        [ ! -e "$f" ] || cp "$f" "$root/etc/apt/apt.conf.d/"
    done
    FRESH_ROOT_INSIDE=yes exec unshare --mount --pid --fork --kill-child sh "$0" "$root" "$@"
fi

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
rm -rf "$root/srv/railyard"
mkdir -p "$root/srv/railyard"
git -C "$source" archive HEAD | tar -x -C "$root/srv/railyard"

for what in "$@"; do
    case $what in
    quickstart) command='sh deploy/quickstart.sh --once' ;;
    run) command='sh tests/run.sh' ;;
    *) echo "fresh_root: '$what' is neither quickstart nor run" >&2; exit 2 ;;
    esac
    echo "== in $root: $command"
    env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        $([ ! -e "$root/etc/machine-ca.crt" ] || echo PIP_CERT=/etc/machine-ca.crt) \
        chroot "$root" sh -c "cd /srv/railyard && $command" </dev/null
done
