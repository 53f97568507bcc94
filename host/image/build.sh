#!/bin/bash
# build.sh [TAG]: builds the image of the host, by default sandbar:latest.
#
# The binary and the engines are built here and copied in. SANDBAR names a binary and SANDBAR_ENGINES a directory of components that
# are there already. BASE is what the image starts from: a Debian, or another system with glibc, not older than this one.
set -euo pipefail

image=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$image/../.." && pwd)
tag=${1:-sandbar:latest}
base=${BASE:-debian:bookworm-slim}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

if [ -z "${SANDBAR:-}" ]; then
  (cd "$sources" && cargo build --locked --release --workspace)
  SANDBAR=${CARGO_TARGET_DIR:-$sources/target}/release/sandbar
fi
install -m 0755 "$SANDBAR" "$context/sandbar"
if [ -z "${SANDBAR_ENGINES:-}" ]; then
  (cd "$sources/engines" && "$SANDBAR" engine build postgres redis mongo box --out "$context/engines.d" --locked)
else
  mkdir "$context/engines.d"
  cp "$SANDBAR_ENGINES"/*.wasm "$SANDBAR_ENGINES/engines.lock" "$context/engines.d"
fi
chmod -R a+rX "$context"
docker build --build-arg BASE="$base" -f "$image/Dockerfile" -t "$tag" "$context"
# A binary that needs a later system than the image has would fail at every start.
docker run --rm "$tag" --version
