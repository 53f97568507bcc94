#!/bin/sh
# Makes the agent's account, in one of two ways. As the container's entrypoint it makes the cluster and the account before
# any server runs, in a single-user session: the image's own start would run a server for it and stop that again, which
# takes as long as all the rest. Where there is something else to do (a cluster that is there already, files of whoever
# built the image), the image's own entrypoint does it, and runs this file once, while the data directory is new and the
# server listens on its socket alone. Passwords come from the environment and reach Postgres through standard input, never
# as arguments.
set -eu

# in_database NAME ARGUMENTS…: runs the statements on standard input as the administrator, each followed by an empty line.
# One that fails would stand in the server's log, and psql would quote it: both would show a password.
if [ "$#" -gt 0 ]; then
  if [ -s "$PGDATA/PG_VERSION" ] || [ "$(ls "${0%/*}")" != "${0##*/}" ]; then
    exec docker-entrypoint.sh "$@"
  fi
  # shellcheck disable=SC2086 # the arguments are words
  printf '%s\n' "$POSTGRES_PASSWORD" | initdb --username=postgres --pwfile=/dev/stdin \
    ${POSTGRES_INITDB_WALDIR:+"--waldir=$POSTGRES_INITDB_WALDIR"} $POSTGRES_INITDB_ARGS
  server=$1
  shift
  in_database() {
    database=$1
    shift
    "$server" --single -j "$@" -c exit_on_error=on -c log_min_error_statement=panic "$database" >/dev/null
  }
else
  server=
  in_database() {
    PGOPTIONS='-c log_statement=none -c log_min_error_statement=panic -c log_min_duration_statement=-1' \
      psql -X -q -v ON_ERROR_STOP=1 -v VERBOSITY=terse -U postgres -d "$1"
  }
fi

read -r major <"$PGDATA/PG_VERSION"

# Before 16, a role that may create roles may also make itself a member of pg_execute_server_program. What it creates it may
# also act as, and give things to: suites do CREATE ROLE app; CREATE DATABASE app OWNER app.
roles=
[ "$major" -lt 16 ] || roles="ALTER ROLE \"$ACCOUNT_USER\" CREATEROLE;

ALTER ROLE \"$ACCOUNT_USER\" SET createrole_self_grant = 'set, inherit';"

# Extensions live apart from "public", which test suites like to drop. Only the administrator may create anything there:
# what an extension's script finds in this schema, it runs as superuser.
in_database template1 "$@" <<SQL
CREATE SCHEMA extensions;

GRANT USAGE ON SCHEMA extensions TO PUBLIC;

CREATE ROLE "$ACCOUNT_USER" LOGIN CREATEDB $ACCOUNT_KIND PASSWORD '$ACCOUNT_PASSWORD';

$roles

CREATE DATABASE "$ACCOUNT_DATABASE" OWNER "$ACCOUNT_USER";

SQL

# Before 15 "public" belongs to the administrator, and its owner could not drop it.
[ "$major" -ge 15 ] || in_database "$ACCOUNT_DATABASE" "$@" <<SQL
ALTER SCHEMA public OWNER TO "$ACCOUNT_USER";

SQL

# Nobody replicates. From 18 on this has a name of its own, and a checkpoint writes a file for it, which the server would not
# survive on a full disk.
[ "$major" -lt 18 ] || echo 'max_active_replication_origins = 0' >>"$PGDATA/postgresql.auto.conf"

# The administrator comes over the socket, which only commands inside of the container reach; nobody is trusted, and
# nobody replicates.
cat >"$PGDATA/pg_hba.conf" <<HBA
local all all          scram-sha-256
host  all postgres all reject
host  all all      all scram-sha-256
HBA

[ -z "$server" ] || exec "$server" "$@"
