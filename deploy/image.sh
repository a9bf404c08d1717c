#!/bin/sh
# The steps of deploy/Containerfile, as root on Debian 12; runs anywhere a root of that kind does (tests/tools/fresh_root.sh).
#
#   sh deploy/image.sh build-packages on|off     what the build needs; on: the CUDA compiler too, from PyPI
#   sh deploy/image.sh build on|off [COMMIT]     builds in /build, lays what runs out in /out
#   sh deploy/image.sh run-packages              the libraries that the programs need
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
nvcc_dir=/opt/nvcc

clean_apt() {
    apt-get clean
    rm -rf /var/lib/apt/lists/*
}

case ${1:-} in
build-packages)
    # shellcheck disable=SC2086  # lists of words
    packages_need /tmp/apt.log $packages_build $packages_talk g++ python3-venv binutils
    [ "${2:-on}" = off ] || packages_nvcc "$nvcc_dir"
    clean_apt
    ;;
build)
    gpu=disabled
    if [ "${2:-on}" = on ]; then
        gpu=enabled
        PATH=$(packages_nvcc "$nvcc_dir"):$PATH
    fi
    meson setup /build . -Dgpu="$gpu" -Dcommit="${3:-unknown}"
    ninja -C /build railyard railyard-worker
    install -D -m 755 -s -t /out/usr/local/bin /build/railyard /build/railyard-worker
    install -D -m 644 -t /out/usr/local/share/railyard/demo tests/models/demo/*.json tests/models/demo/*.jinja \
        tests/models/demo/*.safetensors
    install -D -m 644 -t /out/usr/local/share/doc/railyard LICENSE README.md docs/*.md
    ;;
run-packages)
    # shellcheck disable=SC2086  # a list of words
    packages_need /tmp/apt.log $packages_run
    clean_apt
    ;;
*)
    echo "use: sh deploy/image.sh build-packages on|off | build on|off [COMMIT] | run-packages" >&2
    exit 2
    ;;
esac
