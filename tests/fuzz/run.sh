#!/bin/sh
# Fuzzes one parser with libFuzzer under the address and undefined behaviour sanitizers, from its committed corpus.
#
#   sh tests/fuzz/run.sh TARGET SECONDS [--keep]   ends with the parser's coverage; --keep adds what it learnt to the corpus
#   sh tests/fuzz/run.sh TARGET --planted          against a build with a bug planted in the parser (common/planted.h), which
#                                                  the corpus must pass by and the fuzzer must find within a minute
#   sh tests/fuzz/run.sh TARGET --cover            the coverage of the committed corpus alone
#
# Exit status 0: nothing found, or with --planted: found. Needs clang-14, libclang-rt-14-dev and llvm-14. Builds are under build-fuzz/.
set -u
cd "$(dirname "$0")/../.." || exit 1
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:$PATH
usage() { sed -n '4,7s/^# *//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
target=$1 what=$2 keep=
[ "${3:-}" = --keep ] && keep=yes
corpus=tests/fuzz/corpus/$target
work=build-fuzz/runs/$target
[ -d "$corpus" ] || { echo "no target '$target'; there are: $(ls tests/fuzz/corpus | tr '\n' ' ')" >&2; exit 2; }

case $target in # what its coverage is counted in
safetensors) sources=worker/engine/safetensors.c max_len=2048 ;;
model_config) sources=worker/engine/model_config.c max_len=2048 ;;
dflash_config) sources=worker/engine/dflash_config.c max_len=2048 ;;
tokenizer) sources='router/text/tokenizer_file.c router/text/added.c router/text/vocab.c' max_len=6000 ;;
body) sources=router/body.c max_len=4096 ;;
frame) sources='proto/frame_decode.c proto/frame_scan.c proto/frame_layout.c' max_len=4096 ;;
template) sources='router/text/template.c router/text/template_qwen.c router/text/prompt.c router/text/pyjson.c' max_len=4096 ;;
encode) sources='router/text/added.c router/text/tokenizer.c router/text/pretoken.c router/text/bpe.c router/text/nfc.c' max_len=4096 ;;
reply) sources=router/text/reply.c max_len=4096 ;;
h1scan) sources=router/h1scan.c max_len=4096 ;;
h2heads) sources=router/h2heads.c max_len=4096 ;;
*) echo "run.sh does not know the sources of '$target'" >&2; exit 2 ;;
esac
export LLVM_PROFILE_FILE=/dev/null # of programs that a build runs
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# build NAME PROGRAM MESON_OPTION...: one program of a build folder of its own.
build() {
    dir=build-fuzz/$1 program=$2
    shift 2
    [ -f "$dir/build.ninja" ] || CC=clang-14 meson setup "$dir" -Db_lundef=false "$@" >"$dir.log" 2>&1 ||
        { tail -n 20 "$dir.log"; exit 1; }
    ninja -C "$dir" "tests/fuzz/$program" >"$dir.log" 2>&1 || { tail -n 20 "$dir.log"; exit 1; }
}

# cover FOLDER...: how much of the parser the inputs reach.
cover() {
    build cover "replay_$target" -Dc_args='-fprofile-instr-generate -fcoverage-mapping' -Dc_link_args=-fprofile-instr-generate
    program=build-fuzz/cover/tests/fuzz/replay_$target
    LLVM_PROFILE_FILE=$work/cover.raw "$program" "$@" || exit 1
    llvm-profdata-14 merge -o "$work/cover.data" "$work/cover.raw" || exit 1
    llvm-cov-14 report "$program" -instr-profile="$work/cover.data" | awk -v sources="$sources" '
        /^Filename/ { print "coverage of the parser                regions  functions      lines   branches" }
        index(" " sources " ", " " $1 " ") { printf "  %-34s %9s  %9s  %9s  %9s\n", $1, $4, $7, $10, $13 }'
}

dict=
[ -f "tests/fuzz/dict/$target.dict" ] && dict=-dict=tests/fuzz/dict/$target.dict
rm -rf "$work"
mkdir -p "$work/found"

fuzz() { # fuzz BUILD SECONDS [FLAG...]
    fuzz_build=$1 seconds=$2
    shift 2
    "build-fuzz/$fuzz_build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=$max_len -rss_limit_mb=2048 \
        -timeout=20 -print_final_stats=1 -artifact_prefix="$work/" $dict "$@" "$work/found" "$corpus" >"$work/log" 2>&1
}

sanitized='-Dfuzz=true -Db_sanitize=address,undefined'
case $what in
--cover) cover "$corpus" ;;
--planted)
    # shellcheck disable=SC2086
    build planted "fuzz_$target" $sanitized -Dplanted=true
    # shellcheck disable=SC2086
    build planted "replay_$target" $sanitized -Dplanted=true
    "build-fuzz/planted/tests/fuzz/replay_$target" "$corpus" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log"; echo "$target: the corpus alone meets the planted bug: nothing would be shown"; exit 1; }
    began=$(date +%s)
    fuzz planted 60 -seed="${FUZZ_SEED:-1}"
    status=$? took=$(($(date +%s) - began))
    [ $status != 0 ] || { echo "$target: the planted bug was not found in 60 s"; exit 1; }
    grep -m 1 -E 'runtime error|ERROR: ' "$work/log"
    echo "$target: the planted bug was found in $took s, $(sed -n 's/^stat::number_of_executed_units: //p' "$work/log") runs"
    ;;
*[!0-9]* | '') usage ;;
*)
    # shellcheck disable=SC2086
    build clean "fuzz_$target" $sanitized
    if ! fuzz clean "$what"; then
        tail -n 40 "$work/log"
        echo "$target: FOUND: $(ls "$work" | grep -E '^(crash|leak|oom|timeout)-' | tr '\n' ' ')in $work"
        exit 1
    fi
    echo "$target: nothing found in $what s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log") runs"
    cover "$corpus" "$work/found"
    if [ -n "$keep" ]; then
        # An input for each new edge, so that the corpus stays small.
        mkdir -p "$work/merged"
        "build-fuzz/clean/tests/fuzz/fuzz_$target" -set_cover_merge=1 -use_counters=0 -max_len=$max_len "$work/merged" \
            "$corpus" "$work/found" >>"$work/log" 2>&1 || exit 1
        for f in "$work/merged"/*; do
            [ ! -f "$f" ] || cp "$f" "$corpus/$(sha256sum "$f" | cut -c 1-16)"
        done
        echo "corpus: $(ls "$corpus" | wc -l) inputs"
        cover "$corpus"
    fi
    ;;
esac
