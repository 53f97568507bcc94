#!/bin/sh
# Sets up what building and testing need beside Rust: a way to build for WebAssembly, Docker, and the images. Leaves alone
# what is there already.
set -eu
tests=$(cd "$(dirname "$0")" && pwd)

# A way to build engines: rustup's target where it is installed or can be, else Debian's toolchain for it.
has_target() {
  libdir=$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null) && [ -n "$(ls "$libdir" 2>/dev/null)" ]
}
if has_target; then
  echo "wasm: the toolchain's own target"
elif dpkg -s rustc-web rust-web-src >/dev/null 2>&1; then
  echo "wasm: Debian's rustc-web"
elif command -v rustup >/dev/null && timeout 120 rustup target add wasm32-unknown-unknown >/dev/null 2>&1 && has_target; then
  echo "wasm: installed the toolchain's target"
elif command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "wasm: installing Debian's rustc-web, since rustup's target cannot be had"
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rustc-web rust-web-src >/dev/null
else
  echo "wasm: install the target with \`rustup target add wasm32-unknown-unknown\`" >&2
  exit 1
fi

"$tests/docker/ensure.sh"
"$tests/registry/ensure.sh"
"$tests/images/ensure.sh"
"$tests/mcp/ensure.sh"
"$tests/suites/ensure.sh" alembic
