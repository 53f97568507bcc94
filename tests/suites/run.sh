#!/bin/bash
# run.sh DIR WITH-SANDBOX: runs the test suites of SQLAlchemy (what its dialects must be able to do, and PostgreSQL's part)
# and Alembic (what touches a database) against a sandbox each, as their authors run them, and says how many tests passed
# and failed. They are fetched as source packages and installed with their driver below DIR. WITH-SANDBOX is the program
# of that name in ../src/bin; the suites get the variables of the evidence and nothing else.
set -euo pipefail

dir=$1
with_sandbox=$(realpath "$2")
sqlalchemy=2.0.43
alembic=1.16.5
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$dir"
dir=$(realpath "$dir")
venv="$dir/venv"
packages=("sqlalchemy==$sqlalchemy" psycopg2-binary==2.9.13 pytest==8.4.2 pytest-xdist==3.8.0 mako tzdata)
if [ "$(cat "$dir/installed" 2>/dev/null)" != "${packages[*]}" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "${packages[@]}"
  echo "${packages[*]}" >"$dir/installed"
fi
for source in "sqlalchemy-$sqlalchemy" "alembic-$alembic"; do
  [ ! -d "$dir/$source" ] || continue
  "$venv/bin/pip" download --quiet --no-deps --no-binary "${source%-*}" --dest "$dir" "${source%-*}==${source##*-}"
  tar -C "$dir" -xf "$dir/$source.tar.gz"
done

failed=0
# suite NAME FOLDER ARGUMENTS...: runs pytest in the folder, in a sandbox of its own.
suite() {
  local name=$1 log="$dir/$1.log" status=0 line
  # A host that cannot be had, or that leaves something behind, fails too.
  "$with_sandbox" "$here/inside.sh" "$venv" "$dir/$2" "${@:3}" >"$log" 2>&1 || status=$?
  line=$(grep -E '^=+ .*(passed|failed|error).* in .*=+$' "$log" | tail -n 1 | tr -d '=' || true)
  echo "$name:${line:- no result, see $log}"
  if [ "$status" != 0 ] || [ -z "$line" ]; then
    grep -E '^(FAILED|ERROR)' "$log" || tail -n 20 "$log"
    failed=1
  fi
}

suite alembic "alembic-$alembic" --backend-only tests
suite sqlalchemy "sqlalchemy-$sqlalchemy" test/dialect/test_suite.py test/dialect/postgresql
exit "$failed"
