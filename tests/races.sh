#!/usr/bin/env bash
# Runs models on 2, 4 and 8 threads under ThreadSanitizer: the fixtures, and mobilenet_v2 (f32 and int8) and distilbert where
# KILN_MODELS names a folder that has them. Says so and does nothing where there is no nightly toolchain for x86-64 Linux.
# The last run is one without waits, in which races must be found: else nothing was checked.
#
# Nothing of kiln's is suppressed. The standard library is not instrumented: what it orders (thread start and end, park) goes
# through functions that ThreadSanitizer knows, and kiln's own events are atomics of instrumented code.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-gnu
if ! rustc +nightly -vV 2> /dev/null | grep -q "host: $target"; then
  echo "skipped: the race check needs a nightly toolchain for $target"
  exit 0
fi
folder=${CARGO_TARGET_DIR:-target}/races
# The target is named so that build scripts and macros are compiled without the sanitizer.
RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
  cargo +nightly build --release -q -p kiln-compiler --example instreams --target "$target" --target-dir "$folder"
run=$folder/$target/release/examples/instreams
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# Each race is a report, and ends the process with status 66.
check() {
  if ! timeout 600 "$run" "$@" > "$report" 2>&1; then
    echo "$*: failed"
    head -n 60 "$report"
    exit 1
  fi
  head -n 1 "$report" | cut -d ';' -f 1
}

for streams in 2 4 8; do
  for model in unet mobile encoder digits; do
    check "fixtures/models/$model" "$streams" 100
  done
  for model in mobilenet_v2.fixed mobilenet_v2.int8_qdq.fixed distilbert.fixed; do
    if [ -d "${KILN_MODELS:-/nowhere}/$model" ]; then
      check "$KILN_MODELS/$model" "$streams" 1
    fi
  done
done
if "$run" fixtures/models/unet 4 20 without-waits > "$report" 2>&1 || ! grep -q "ThreadSanitizer: data race" "$report"; then
  echo "without waits no race was found: the check does not work here"
  exit 1
fi
echo "no races; without waits $(grep -c 'WARNING: ThreadSanitizer' "$report") reports"
