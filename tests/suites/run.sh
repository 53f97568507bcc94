#!/bin/bash
# run.sh DIR WITH-SANDBOX: runs the test suites of SQLAlchemy (what its dialects must be able to do, and PostgreSQL's part)
# and Alembic (what touches a database) against a sandbox each, as their authors run them, and says how many tests passed
# and failed. What they print is kept in DIR. WITH-SANDBOX is the program of that name in ../src/bin; the suites get the
# variables of the evidence and nothing else.
set -euo pipefail

dir=$1
with_sandbox=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
dir=$(realpath "$dir")
source=$("$here/ensure.sh" sqlalchemy alembic)
[ -n "$source" ]

failed=0
# suite NAME FOLDER ARGUMENTS...: runs pytest in the folder, in a sandbox of its own.
suite() {
  local name=$1 log="$dir/$1.log" status=0 line
  # A host that cannot be had, or that leaves something behind, fails too.
  "$with_sandbox" "$here/inside.sh" "$source/venv" "$source/$2" "${@:3}" >"$log" 2>&1 || status=$?
  line=$(grep -E '^=+ .*(passed|failed|error).* in .*=+$' "$log" | tail -n 1 | tr -d '=' || true)
  echo "$name:${line:- no result, see $log}"
  if [ "$status" != 0 ] || [ -z "$line" ]; then
    grep -E '^(FAILED|ERROR)' "$log" || tail -n 20 "$log"
    failed=1
  fi
}

suite alembic alembic --backend-only tests
suite sqlalchemy sqlalchemy test/dialect/test_suite.py test/dialect/postgresql
exit "$failed"
