#!/bin/sh
# Makes the agent's account. The image runs this once, while the data directory is new and the server listens on its
# socket alone. Passwords come from the environment and reach psql through its standard input, never as arguments.
set -eu

# A statement that fails would stand in the server's log, and psql would quote it: both would show a password.
export PGOPTIONS='-c log_statement=none -c log_min_error_statement=panic -c log_min_duration_statement=-1'

psql -X -q -v ON_ERROR_STOP=1 -v VERBOSITY=terse -U postgres -d template1 <<SQL
-- Extensions live apart from "public", which test suites like to drop. Only the administrator may create anything here:
-- what an extension's script finds in this schema, it runs as superuser.
CREATE SCHEMA extensions;
GRANT USAGE ON SCHEMA extensions TO PUBLIC;

CREATE ROLE "{user}" LOGIN CREATEDB $ACCOUNT_KIND PASSWORD '$ACCOUNT_PASSWORD';

-- Before 16, a role that may create roles may also make itself a member of pg_execute_server_program.
SELECT current_setting('server_version_num')::int >= 160000 AS modern \gset
\if :modern
ALTER ROLE "{user}" CREATEROLE;
-- What it creates it may also act as, and give things to: suites do CREATE ROLE app; CREATE DATABASE app OWNER app.
ALTER ROLE "{user}" SET createrole_self_grant = 'set, inherit';
\endif

-- Nobody replicates. From 18 on this has a name of its own, and a checkpoint writes a file for it, which the server would
-- not survive on a full disk.
SELECT current_setting('max_active_replication_origins', true) IS NOT NULL AS named \gset
\if :named
ALTER SYSTEM SET max_active_replication_origins = 0;
\endif

CREATE DATABASE "{database}" OWNER "{user}";
\connect "{database}"
-- Before 15 "public" belongs to the administrator, and its owner could not drop it.
ALTER SCHEMA public OWNER TO "{user}";
SQL

# The administrator comes over the socket, which only commands inside of the container reach; nobody is trusted, and
# nobody replicates.
cat >"$PGDATA/pg_hba.conf" <<HBA
local all all          scram-sha-256
host  all postgres all reject
host  all all      all scram-sha-256
HBA
