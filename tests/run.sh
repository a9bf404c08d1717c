#!/bin/sh
# Installs, builds and runs every suite that needs no GPU, on a fresh Debian 12 or anywhere later. The last line is
# `N passed, N failed`; the exit status is 0 only when nothing failed and nothing was skipped.
#
#   sh tests/run.sh [--suite NAME]... [--no-install] [--no-sanitizers]
#
# The build folders are build-run/{gcc,clang,asan,tsan}; logs of a failing step are printed and stay in there.
set -u
cd "$(dirname "$0")/.." || exit 1
# Debian's own python3, meson and compilers, whatever else comes first on the user's path.
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:$PATH
. deploy/packages.sh

all_suites='unit mock golden fuzz e2e'
suites=
install=yes
sanitizers=yes
while [ $# -gt 0 ]; do
    case $1 in
    --suite)
        [ $# -ge 2 ] || { echo "--suite wants a name: $all_suites" >&2; exit 2; }
        case " $all_suites " in
        *" $2 "*) suites="$suites $2" ;;
        *) echo "--suite: no suite '$2'; there are: $all_suites" >&2; exit 2 ;;
        esac
        shift
        ;;
    --no-install) install= ;;
    --no-sanitizers) sanitizers= ;;
    *) echo "usage: sh tests/run.sh [--suite NAME]... [--no-install] [--no-sanitizers]" >&2; exit 2 ;;
    esac
    shift
done
suites=${suites:-$all_suites}

top=build-run
mkdir -p "$top"
passed=0
failed=0
skipped=0
venv_pid=
began=$(date +%s)

row() { printf '%-22s %5s s   %s\n' "$1" "$2" "$3"; }

# step NAME LOG COMMAND...: one check: passes when the command does. Its output goes to the log, shown on failure.
step() {
    step_name=$1 step_log=$2 step_began=$(date +%s)
    shift 2
    if "$@" >"$step_log" 2>&1; then
        passed=$((passed + 1))
        row "$step_name" $(($(date +%s) - step_began)) ok
    else
        failed=$((failed + 1))
        tail -n 60 "$step_log"
        row "$step_name" $(($(date +%s) - step_began)) "FAILED ($step_log)"
        return 1
    fi
}

# shellcheck disable=SC2317  # called through step
# build NAME MESON_OPTION...: configures build-run/NAME once and builds all of it, tests included. Of debug information the lines
# alone, which reports name: compiling is a fifth quicker, the code the same.
build() {
    build_dir=$top/$1
    shift
    [ -f "$build_dir/build.ninja" ] || {
        rm -rf "$build_dir"
        meson setup "$build_dir" -Ddebug=false -Dc_args=-g1 "$@" || return 1
    }
    ninja -C "$build_dir"
}

# suite DIR SUITE: runs one meson suite and adds up its tests (TAP subtests counted one by one). Two programs more than there
# are cores, as many wait for a clock or a process most of their time.
suite() {
    suite_began=$(date +%s)
    rm -f "$top/$1/meson-logs/$2.json"
    meson test -C "$top/$1" --no-rebuild --suite "$2" --logbase "$2" --num-processes $(($(nproc) + 2)) >"$top/$1-$2.log" 2>&1
    # Prints "passed failed skipped" last, and whatever failed before it.
    counted=$(/usr/bin/python3 tests/tools/tally.py "$top/$1/meson-logs/$2.json")
    printf '%s\n' "$counted" | sed '$d'
    # shellcheck disable=SC2046  # three numbers
    set -- "$1" "$2" $(printf '%s\n' "$counted" | tail -n 1)
    passed=$((passed + $3))
    failed=$((failed + $4))
    skipped=$((skipped + $5))
    row "$1 $2" $(($(date +%s) - suite_began)) "$3 passed, $4 failed$([ "$5" = 0 ] || echo ", $5 skipped")"
}

finish() {
    [ -z "$venv_pid" ] || kill "$venv_pid" 2>/dev/null
    row total $(($(date +%s) - began)) ''
    [ "$skipped" = 0 ] || echo "$skipped skipped: a skipped test counts as no success"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$skipped" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

if [ -n "$install" ]; then
    # shellcheck disable=SC2086  # lists of words
    step install "$top/install.log" packages_need "$top/apt.log" $packages_build $packages_talk $packages_test \
        $(command -v kubectl >/dev/null || echo "$packages_test_kubectl") || finish
fi
# The end-to-end tests alone want these: they are fetched while the compilers run.
sh tests/tools/venv.sh >"$top/venv.log" 2>&1 &
venv_pid=$!
# shellcheck disable=SC2317  # called through step
venv_made() {
    wait "$venv_pid"
    venv_status=$? venv_pid=
    cat "$top/venv.log"
    return "$venv_status"
}
# The kernels are compiled for two architectures, once: the other builds have the host side alone.
# shellcheck disable=SC2317  # called through step
find_nvcc() { packages_nvcc "$PWD/$top/nvcc" >"$top/nvcc.path"; }
gpu='-Dgpu=auto'
if [ -n "$install" ]; then
    step nvcc "$top/nvcc.log" find_nvcc || finish
    PATH=$PATH:$(cat "$top/nvcc.path")
    gpu='-Dgpu=enabled'
fi
# The sanitized programs get the CPU kernels of this build, which are not sanitized in them anyway.
plain=
if step 'build gcc' "$top/build-gcc.log" build gcc $gpu -Dgpu_archs=80,90a; then
    plain=-Dplain_build=$PWD/$top/gcc
    step 'python packages' "$top/venv-wait.log" venv_made || finish
    for s in $suites; do suite gcc "$s"; done
fi
CC=clang-14 step 'build clang' "$top/build-clang.log" build clang -Dfuzz=true -Dgpu=disabled
# A twentieth of what `sh tests/long.sh fuzz` gives each parser (there with the sanitizers, too), two at a time.
# shellcheck disable=SC2317  # called through step
fuzz_each() {
    rm -rf "$top/fuzz" && mkdir -p "$top/fuzz" || return 1
    ls tests/fuzz/corpus | xargs -P 2 -I TARGET sh -c '
        mkdir "$1/fuzz/TARGET" && dict=tests/fuzz/dict/TARGET.dict
        "$1/clang/tests/fuzz/fuzz_TARGET" -max_total_time=30 -max_len=4096 -rss_limit_mb=2048 -timeout=20 \
            -artifact_prefix="$1/fuzz/TARGET-" $([ ! -f "$dict" ] || echo "-dict=$dict") "$1/fuzz/TARGET" \
            tests/fuzz/corpus/TARGET >"$1/fuzz/TARGET.log" 2>&1 ||
            { tail -n 20 "$1/fuzz/TARGET.log"; echo "TARGET: found something"; exit 1; }' sh "$top"
}
case " $suites " in
*' fuzz '*) [ ! -x "$top/clang/tests/fuzz/fuzz_body" ] || step 'fuzz parsers' "$top/fuzz.log" fuzz_each ;;
esac
if [ -n "$sanitizers" ]; then
    # Leak checks at the end of every program come with address.
    if step 'build asan' "$top/build-asan.log" build asan ${plain:+"$plain"} -Dgpu=disabled -Db_sanitize=address,undefined -Db_lundef=false; then
        for s in $suites; do suite asan "$s"; done
    fi
    if step 'build tsan' "$top/build-tsan.log" build tsan ${plain:+"$plain"} -Dgpu=disabled -Db_sanitize=thread -Db_lundef=false; then
        for s in $suites; do
            case $s in unit | e2e) suite tsan "$s" ;; esac # mocks, goldens and corpora have one thread
        done
    fi
fi
finish
