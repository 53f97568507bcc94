#!/bin/sh
# Makes sure that the official Python client of MCP is there for the tests, in its current version and in the last one of
# before, which speaks older protocols only. One that cannot be had fails the tests that need it and nothing else.
set -eu

clients="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar/mcp-clients"
mkdir -p "$clients"

# client NAME VERSION
client() {
  if [ "$(cat "$clients/$1/version" 2>/dev/null)" = "$2" ]; then
    echo "mcp: $2 is there"
    return
  fi
  rm -rf "${clients:?}/$1"
  if python3 -m venv "$clients/$1" && "$clients/$1/bin/pip" install --quiet --disable-pip-version-check "mcp==$2"; then
    echo "$2" >"$clients/$1/version"
    echo "mcp: installed $2"
  else
    echo "mcp: the Python package mcp $2 is missing, which tests of MCP need; they want python3-venv and PyPI." >&2
  fi
}

client current 2.3.0
client before 1.30.0
