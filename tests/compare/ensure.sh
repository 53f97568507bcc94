#!/bin/sh
# Makes sure that what Sandbar is compared with is there, below the folder DIR: `ensure.sh DIR`. What cannot be had is missing
# in the comparison, or the comparison is left out, and the bench says so.
set -eu

dir=$1
here=$(cd "$(dirname "$0")" && pwd)
# With the drivers of its modules; they also ask whether services answer, whoever started those.
packages='testcontainers[mongodb,postgres,redis]==4.15.0 psycopg[binary]==3.3.9'

CARGO_TARGET_DIR=$dir cargo build --quiet --locked --release --manifest-path "$here/rust/Cargo.toml" ||
  echo "compare: Testcontainers for Rust was not built, and is left out." >&2

[ "$(cat "$dir/packages" 2>/dev/null)" != "$packages" ] || exit 0
rm -rf "$dir/venv"
# shellcheck disable=SC2086 # several
if python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install --quiet --disable-pip-version-check $packages; then
  echo "$packages" >"$dir/packages"
  echo "compare: installed $packages"
else
  rm -rf "$dir/venv"
  echo "compare: the Python packages $packages are missing; they want python3-venv and PyPI." >&2
fi
