#!/bin/bash
# inside.sh VENV FOLDER ARGUMENTS...: what run.sh runs in a sandbox. It makes what the suites say that they need, with the
# account that an agent gets, and two workers: each of them makes a database of its own from that one.
set -euo pipefail

"$1/bin/python" - <<'END'
import os, psycopg2
connection = psycopg2.connect(os.environ["DATABASE_URL"])
connection.autocommit = True
for statement in (
    "CREATE SCHEMA test_schema",
    "CREATE SCHEMA test_schema_2",
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION btree_gist",
    # They take for granted what the operating system of an image may lack.
    "CREATE COLLATION IF NOT EXISTS public.\"en_US\" (provider = icu, locale = 'en-US')",
):
    connection.cursor().execute(statement)
END
cd "$2"
exec "$1/bin/python" -m pytest -q -n 2 -p no:cacheprovider --dburi "${DATABASE_URL/#postgresql:/postgresql+psycopg2:}" "${@:3}"
