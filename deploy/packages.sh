# The Debian 12 packages that Railyard is built and tested with: the one list. Sourced by quickstart.sh and
# tests/run.sh; POSIX sh, no side effect until packages_need is called.
# shellcheck disable=SC2034  # read by the scripts that source this

packages_build='gcc libc6-dev meson ninja-build pkg-config
libh2o-dev libuv1-dev libssl-dev libnng-dev libmsgpack-dev libjansson-dev libpcre2-dev libutf8proc-dev'

packages_talk='ca-certificates curl python3'

# The libraries of packages_build as the built programs load them.
packages_run='ca-certificates libh2o0.13 libuv1 libssl3 libnng1 libmsgpackc2 libjansson4 libpcre2-8-0 libutf8proc2'

packages_test='g++ clang-14 clang-format-14 libclang-rt-14-dev procps openssl nghttp2-client systemd
python3-h2 python3-jinja2 python3-msgpack python3-numpy python3-venv python3-yaml'
# Where no kubectl is there, whatever package it came from.
packages_test_kubectl=kubernetes-client

# What compiles the CUDA kernels where the machine has no nvcc: NVIDIA's own wheels on PyPI, no driver, 300 MB.
packages_nvcc_wheels='nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85'

# Names those of the given packages that are not installed.
packages_missing() {
    for p in "$@"; do
        case $(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null) in
        ii*) ;;
        *) printf '%s ' "$p" ;;
        esac
    done
}

# Runs apt-get as root, directly or by sudo; its output goes to the file $packages_log.
packages_apt() {
    if [ "$(id -u)" = 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get -q "$@"
    else
        sudo DEBIAN_FRONTEND=noninteractive apt-get -q "$@"
    fi >>"$packages_log" 2>&1 </dev/null
}

# packages_need LOG PACKAGE...: installs what is missing. With nothing missing it touches neither apt nor the net.
packages_need() {
    packages_log=$1
    shift
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        echo "This script installs packages with apt-get (Debian 12), which is not here." >&2
        echo "Install these by hand, then build as README.md says: $*" >&2
        return 1
    fi
    missing=$(packages_missing "$@")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null && { [ ! -t 0 ] || ! sudo true; }; then
        echo "Packages are missing, and only root can install them. As root: apt-get install $missing" >&2
        return 1
    fi
    : >"$packages_log"
    # A list of packages that is too old names files that the mirror no longer has, so one failure means: fetch it.
    # shellcheck disable=SC2086  # a list of words
    if ! packages_apt install -y --no-install-recommends $missing; then
        packages_apt update && packages_apt install -y --no-install-recommends $missing
    fi || {
        tail -n 20 "$packages_log" >&2
        echo "apt-get could not install: $missing" >&2
        return 1
    }
}

# packages_nvcc DIR: the folder of nvcc on stdout: the machine's own, else that of the wheels, installed into DIR once.
packages_nvcc() {
    for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
        [ -x "$nvcc" ] && { dirname "$nvcc"; return 0; }
    done
    nvcc=$(echo "$1"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
    if [ ! -x "$nvcc" ]; then
        # shellcheck disable=SC2086  # a list of words
        /usr/bin/python3 -m venv "$1" >&2 && "$1/bin/pip" install -q --no-deps $packages_nvcc_wheels >&2 || return 1
        nvcc=$(echo "$1"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
    fi
    [ -x "$nvcc" ] && dirname "$nvcc"
}
