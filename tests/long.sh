#!/bin/sh
# The runs that are too long for tests/run.sh, which runs a twentieth of each.
#
#   sh tests/long.sh [NAME]...      chaos soak alarm frames fuzz; none: all, about two and a half hours
#
# Builds what it needs in build-run/ (as tests/run.sh does, whose packages must be there). Output goes to the terminal; the last
# line of each run says whether it passed, the exit status whether all did. docs/notes/long.md keeps what was printed.
set -u
cd "$(dirname "$0")/.." || exit 1
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:$PATH
names=${*:-chaos soak alarm frames fuzz}
failed=

build() {
    dir=build-run/$1
    shift
    [ -f "$dir/build.ninja" ] || meson setup "$dir" "$@" >/dev/null || exit 1
    ninja -C "$dir" >"$dir/long-build.log" 2>&1 || { tail -n 30 "$dir/long-build.log"; exit 1; }
}

# e2e DIR SMALL TEST NAME=VALUE...
e2e() {
    dir=$1 small=$2 name=$3
    shift 3
    echo "== $name: $* ($dir, $(git rev-parse --short=12 HEAD 2>/dev/null), $(nproc) cores, $(date -u +%FT%TZ))"
    env "$@" RAILYARD_SOURCE="$PWD" RAILYARD_BUILD="$PWD/$dir" RAILYARD_SMALL="$small" \
        /usr/bin/python3 "tests/e2e/${name}_test.py" || failed="$failed $name"
}

for name in $names; do
    case $name in
    chaos)
        build gcc
        e2e build-run/gcc 0 chaos RAILYARD_CHAOS_S=120
        ;;
    soak)
        build gcc
        e2e build-run/gcc 0 soak RAILYARD_SOAK_S=1800
        ;;
    alarm)
        build gcc # the sanitized programs have its CPU kernels
        build tsan -Dplain_build="$PWD/build-run/gcc" -Dgpu=disabled -Db_sanitize=thread -Db_lundef=false
        e2e build-run/tsan 1 alarm RAILYARD_ALARM_S=600
        build asan -Dplain_build="$PWD/build-run/gcc" -Dgpu=disabled -Db_sanitize=address,undefined -Db_lundef=false
        e2e build-run/asan 1 alarm RAILYARD_ALARM_S=600
        ;;
    frames)
        build gcc
        e2e build-run/gcc 0 frame_fuzz RAILYARD_FUZZ_S=300
        ;;
    fuzz)
        for target in tests/fuzz/corpus/*/; do
            target=$(basename "$target")
            sh tests/fuzz/run.sh "$target" 600 || failed="$failed fuzz-$target"
        done
        ;;
    *) echo "no long run '$name'; there are: chaos soak alarm frames fuzz" >&2; exit 2 ;;
    esac
done
[ -z "$failed" ] && { echo "all passed:" $names; exit 0; }
echo "failed:$failed"
exit 1
