#!/usr/bin/env bash
# Builds every libFuzzer target with clang, AddressSanitizer and UBSan and runs each for the given seconds, two at a time. New inputs that reach new
# code are merged into the kept corpus; a finding stops with the input's path.
set -euo pipefail
seconds=${1:-600}
build=build/fuzz
flags=(-std=c17 -D_GNU_SOURCE -g -O1 -ffp-contract=off -fno-math-errno -fsanitize=address,undefined -fno-sanitize-recover=all
       -Isrc -I. -pthread -DDM_ISA=generic -DDM_ISA_generic=1)
mkdir -p "$build"
sources=(src/{base,config,data,checkpoint}/*.c)
objects=()
for source in "${sources[@]}"; do
    object=$build/$(echo "${source%.c}" | tr / _).o
    [ "$object" -nt "$source" ] || clang "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
    objects+=("$object")
done
library=$build/libfuzzed.a # a target takes from it what it reaches
rm -f "$library"
ar rcs "$library" "${objects[@]}"
run() {
    local name=$1 kept=tests/fuzz/corpus/$1 grown=$build/corpus-$1
    mkdir -p "$kept" "$grown"
    clang "${flags[@]}" -fsanitize=fuzzer "tests/fuzz/$name.c" "$library" -lyaml -lcjson -lm -o "$build/$name"
    "$build/$name" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/finding-$name-" "$grown" "$kept" >"$build/$name.log" 2>&1 ||
        { tail -40 "$build/$name.log"; return 1; }
    "$build/$name" -merge=1 "$kept" "$grown" >>"$build/$name.log" 2>&1
    echo "$name: $(grep -m1 number_of_executed "$build/$name.log" | grep -o '[0-9]*$') inputs, corpus $(ls "$kept" | wc -l)"
}
export -f run
status=0
pids=()
for target in tests/fuzz/fuzz_*.c; do
    run "$(basename "${target%.c}")" &
    pids+=($!)
    if [ ${#pids[@]} -eq 2 ]; then
        for pid in "${pids[@]}"; do wait "$pid" || status=1; done
        pids=()
    fi
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
