#!/usr/bin/env bash
# Looks for inputs that make a decoder panic, hang or take too much memory. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
corpus=$here/conformance/fuzz/corpus
cd "$corpus"
decoders=(*)

usage() {
    cat <<END
Usage: tests/fuzz.sh [--merge] SECONDS [DECODER ...]

Runs libFuzzer for SECONDS on each of these decoders, by default on all of
conformance/fuzz. An input that makes one fail is a file in target/fuzz/, and the
exit status is 1. Needs a C++ compiler.

  --merge     afterwards add to conformance/fuzz/corpus/ the inputs that reach new
              code, each of at most 512 bytes
  -h, --help  print this

Decoders: ${decoders[*]}
END
}

merge=''
while [ $# -gt 0 ]; do
    case $1 in
    --merge) merge=1 ;;
    -h | --help)
        usage
        exit
        ;;
    *) break ;;
    esac
    shift
done
if ! [[ ${1-} =~ ^[0-9]+$ ]]; then
    usage >&2
    exit 2
fi
seconds=$1
shift
[ $# -gt 0 ] || set -- "${decoders[@]}"

target=$here/target/fuzz
coverage=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares)
machine=$(rustc --version --verbose | sed -n 's/^host: //p')
# The versions are those of the workspace, so there is no second lock file that grows old. libfuzzer-sys has one version in Cargo.toml.
cp "$here/Cargo.lock" "$here/conformance/fuzz/libfuzzer/Cargo.lock"
# With --target the flags are for the fuzzed code alone, not for build scripts and macros.
RUSTFLAGS="${coverage[*]}" cargo build --quiet --release --target "$machine" --target-dir "$target" \
    --manifest-path "$here/conformance/fuzz/libfuzzer/Cargo.toml"

status=0
for decoder; do
    [ -d "$corpus/$decoder" ] || { echo "fuzz.sh: unknown decoder '$decoder'; see --help" >&2; exit 2; }
    run() { TARGET=$decoder "$target/$machine/release/ferrule-libfuzzer" -rss_limit_mb=512 -timeout=5 "$@"; }
    found=$target/$decoder
    mkdir -p "$found"
    run -max_total_time="$seconds" -max_len=4096 -artifact_prefix="$target/$decoder-" -print_final_stats=1 \
        "$found" "$corpus/$decoder" >"$found.log" 2>&1 || status=1
    printf '%s: %s runs in %s s, %s inputs, %s\n' "$decoder" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$found.log")" "$seconds" \
        "$(find "$found" -type f | wc -l)" "$(grep -m 1 -E '^(==|SUMMARY|.*panicked at)' "$found.log" || echo 'no failure')"
    if [ "$merge" ]; then
        run -set_cover_merge=1 -use_counters=0 -max_len=512 "$corpus/$decoder" "$found" >>"$found.log" 2>&1
    fi
done
exit "$status"
