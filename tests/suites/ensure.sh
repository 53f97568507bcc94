#!/bin/bash
# ensure.sh SUITE...: makes sure that Python's own clients of the databases are there for the tests, and the test suites
# named, as source packages. Says on standard output where: `venv`, and a folder for each suite. What cannot be had fails the
# tests that need it and nothing else.
set -euo pipefail

declare -A version=([sqlalchemy]=2.0.43 [alembic]=1.16.5)
packages=("psycopg[binary]==3.3.9" redis==8.1.0 pymongo==4.20.1
  "sqlalchemy==${version[sqlalchemy]}" psycopg2-binary==2.9.13 mako==1.3.10 tzdata==2025.2 pytest==8.4.2 pytest-xdist==3.8.0)
dir="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar/suites"
mkdir -p "$dir"

fetch() {
  if [ "$(cat "$dir/installed" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf "$dir/venv"
    python3 -m venv "$dir/venv" || return
    "$dir/venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" || return
    echo "${packages[*]}" >"$dir/installed"
  fi
  local suite source
  for suite; do
    source="$suite-${version[$suite]}"
    if [ ! -e "$dir/$source.whole" ]; then
      "$dir/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary "$suite" --dest "$dir" \
        "$suite==${version[$suite]}" || return
      tar -C "$dir" -xf "$dir/$source.tar.gz" || return
      touch "$dir/$source.whole"
    fi
    ln -sfn "$source" "$dir/$suite"
  done
}

if fetch "$@"; then
  echo "$dir"
else
  echo "suites: Python's clients of databases, or $*, are missing, which some tests need; they want python3-venv and PyPI." >&2
fi
