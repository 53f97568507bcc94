#!/bin/sh
# Fuzzes one target after another: `run.sh <directory of the build> <seconds>`. What it finds is kept in `fuzz` there, and what
# fails is written to a file whose name it says: give that to the same program to see it again.
set -eu

target=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
engines=${SANDBAR_ENGINES:-$target/engines}

RUSTC_WORKSPACE_WRAPPER="$here/rustc.sh" cargo build --locked --workspace --features sandbar-fuzz/libfuzzer \
  --bin fuzz-component --bin fuzz-recipe --bin fuzz-image
for what in component recipe image; do
  corpus="$target/fuzz/$what"
  mkdir -p "$corpus"
  [ "$what" != component ] || cp "$engines"/*.wasm "$corpus"
  echo "fuzzing $what for $seconds s"
  "$target/debug/fuzz-$what" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=100000 \
    -artifact_prefix="$target/fuzz/$what-" -print_final_stats=1 "$corpus"
done
