#!/bin/sh
# Builds the engine in Python: `build.sh <component>` writes it there, unless it is there already. componentize-py comes from
# PyPI. Where that cannot be had, the tests that need the engine fail and nothing else, so it is no failure here.
set -eu

version=0.25.1
component=$1
here=$(cd "$(dirname "$0")" && pwd)
wit=$(cd "$here/../../../wit" && pwd)
venv="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar/componentize-py-$version"
mkdir -p "$(dirname "$component")" "$(dirname "$venv")"
part=$(mktemp -d "$(dirname "$component")/python.XXXXXX")
trap 'rm -rf "$part"' EXIT

# What it is made of, so that nothing is built twice.
made_of=$(cat "$here/app.py" "$here/build.sh" "$wit"/*.wit | sha256sum)
if [ -f "$component" ] && [ "$made_of" = "$(cat "$component.made-of" 2>/dev/null)" ]; then
  echo "python: the engine is built"
  exit 0
fi

install() {
  # On Debian the module comes in a package of its own.
  if ! python3 -c 'import ensurepip' 2>/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv
  fi
  # The last step is what says that it is whole.
  rm -rf "$venv"
  python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "componentize-py==$version" && touch "$venv/whole"
}

if [ ! -f "$venv/whole" ] && ! install >"$part/log" 2>&1; then
  tail -n 5 "$part/log" >&2
  echo "python: componentize-py $version is missing, which tests of an engine in Python need; pip could not install it." >&2
  exit 0
fi
# From a copy, since Python leaves what it compiled beside what it read.
cp "$here/app.py" "$part"
"$venv/bin/componentize-py" -d "$wit" -w sandbox-engine componentize -p "$part" app -o "$part/engine.wasm"
mv "$part/engine.wasm" "$component"
echo "$made_of" >"$component.made-of"
echo "python: built $component"
