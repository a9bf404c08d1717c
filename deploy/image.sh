#!/bin/sh
# The steps of deploy/Containerfile, as root on Debian 12; runs anywhere a root of that kind does (tests/tools/fresh_root.sh).
#
#   sh deploy/image.sh build-packages on|off [CUDA_VERSION]   what the build needs; on: the CUDA compiler too, from PyPI
#   sh deploy/image.sh build on|off                           builds in /build, lays what runs out in /out
#   sh deploy/image.sh run-packages                           the libraries that the programs need
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
    if [ "${2:-on}" = on ]; then
        v=${3:-13.0.88}
        python3 -m venv "$nvcc_dir"
        "$nvcc_dir/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check \
            "nvidia-cuda-nvcc==$v" "nvidia-cuda-crt==$v" "nvidia-nvvm==$v" "nvidia-cuda-runtime==${v%.*}.*"
    fi
    clean_apt
    ;;
build)
    gpu=disabled
    if [ "${2:-on}" = on ]; then
        gpu=enabled
        PATH=$(dirname "$(find "$nvcc_dir" -name nvcc -type f -path '*/bin/nvcc' | head -n 1)"):$PATH
    fi
    meson setup /build . -Dgpu="$gpu"
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
    echo "use: sh deploy/image.sh build-packages on|off [CUDA_VERSION] | build on|off | run-packages" >&2
    exit 2
    ;;
esac
