#!/bin/bash
# Entrypoint of the PostgreSQL stand-in. It takes the variables of the official image and does things in the same
# order, so that what works here works there.
set -eo pipefail

fail() {
  printf 'Error: %s\n' "$@" >&2
  exit 1
}

# variable NAME [DEFAULT]: sets NAME from itself, from the file that NAME_FILE names, or to the default.
variable() {
  local name=$1 file_name=${1}_FILE value=${2:-}
  if [ -n "${!name:-}" ] && [ -n "${!file_name:-}" ]; then
    fail "$name and $file_name are both set; only one of them can count."
  fi
  if [ -n "${!name:-}" ]; then
    value=${!name}
  elif [ -n "${!file_name:-}" ]; then
    value=$(<"${!file_name}")
  fi
  export "$name=$value"
  unset "$file_name"
}

wants_only_help() {
  local arg
  for arg in "$@"; do
    case $arg in -'?' | --help | --describe-config | -V | --version) return 0 ;; esac
  done
  return 1
}

# As an ordinary user these may not be ours to change; if it matters, initdb says so.
directories() {
  mkdir -p "$PGDATA"
  chmod 0700 "$PGDATA" || true
  mkdir -p /var/run/postgresql || true
  chmod 3775 /var/run/postgresql 2>/dev/null || true
  if [ -n "${POSTGRES_INITDB_WALDIR:-}" ]; then
    mkdir -p "$POSTGRES_INITDB_WALDIR"
    chmod 0700 "$POSTGRES_INITDB_WALDIR"
  fi
  if [ "$(id -u)" = 0 ]; then
    find "$PGDATA" ${POSTGRES_INITDB_WALDIR:+"$POSTGRES_INITDB_WALDIR"} /var/run/postgresql ! -user postgres -exec chown postgres '{}' +
  fi
}

check_variables() {
  if [ -z "$POSTGRES_PASSWORD" ] && [ "$POSTGRES_HOST_AUTH_METHOD" != trust ]; then
    fail "the database is not initialised and no superuser password is given." \
      "Set POSTGRES_PASSWORD to a password that is not empty (docker run -e POSTGRES_PASSWORD=...)," \
      "or POSTGRES_HOST_AUTH_METHOD=trust to let anybody in without one."
  fi
  if [ "$POSTGRES_HOST_AUTH_METHOD" = trust ]; then
    echo 'Warning: POSTGRES_HOST_AUTH_METHOD=trust lets anybody in who reaches this server.' >&2
  fi
}

init_cluster() {
  local args=()
  # The variable holds shell words, quotes included.
  eval "args=(${POSTGRES_INITDB_ARGS:-})"
  [ -z "${POSTGRES_INITDB_WALDIR:-}" ] || args=(--waldir "$POSTGRES_INITDB_WALDIR" "${args[@]}")
  # Through a pipe: an argument would show in ps, and a file would have to be removed.
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") "${args[@]}"
}

# $@: the server's arguments, which may choose another password_encryption.
allow_network() {
  local method=$POSTGRES_HOST_AUTH_METHOD
  [ -n "$method" ] || method=$(postgres -C password_encryption "$@")
  printf '\nhost all all all %s\n' "$method" >>"$PGDATA/pg_hba.conf"
}

# Only on the Unix socket: nobody must reach a server whose accounts are not made yet.
temporary_server() {
  PGUSER="${PGUSER:-$POSTGRES_USER}" pg_ctl -D "$PGDATA" -w -o "$(printf '%q ' "$@" -c listen_addresses='' -p "${PGPORT:-5432}")" start
}

sql() {
  PGHOST='' PGHOSTADDR='' psql -v ON_ERROR_STOP=1 --no-psqlrc --no-password --username "$POSTGRES_USER" "$@"
}

create_database() {
  [ "$POSTGRES_DB" != postgres ] || return 0
  local there
  there=$(sql --dbname postgres --tuples-only --no-align --set db="$POSTGRES_DB" <<<"SELECT 1 FROM pg_database WHERE datname = :'db'")
  [ -n "$there" ] || sql --dbname postgres --set db="$POSTGRES_DB" <<<'CREATE DATABASE :"db"'
}

run_init_files() {
  local file
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in
      *.sh)
        if [ -x "$file" ]; then
          echo "$0: running $file"
          "$file"
        else
          echo "$0: sourcing $file"
          # shellcheck disable=SC1090
          . "$file"
        fi
        ;;
      *.sql)
        echo "$0: running $file"
        sql --dbname "$POSTGRES_DB" -f "$file"
        ;;
      *.sql.gz)
        echo "$0: running $file"
        gunzip -c "$file" | sql --dbname "$POSTGRES_DB"
        ;;
      '/docker-entrypoint-initdb.d/*') ;; # the folder is empty
      *) echo "$0: ignoring $file" ;;
    esac
  done
}

main() {
  case ${1:-} in -*) set -- postgres "$@" ;; esac
  if [ "${1:-}" = postgres ] && ! wants_only_help "$@"; then
    directories
    if [ "$(id -u)" = 0 ]; then
      export HOME=/var/lib/postgresql
      exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
    fi
    if [ -s "$PGDATA/PG_VERSION" ]; then
      echo 'PGDATA holds a database already; nothing to initialise.'
    else
      variable POSTGRES_PASSWORD
      variable POSTGRES_USER postgres
      variable POSTGRES_DB "$POSTGRES_USER"
      variable POSTGRES_INITDB_ARGS
      : "${POSTGRES_HOST_AUTH_METHOD:=}"
      check_variables
      ls /docker-entrypoint-initdb.d/ >/dev/null # a folder that cannot be read must fail before anything is made
      init_cluster
      allow_network "${@:2}"
      export PGPASSWORD="${PGPASSWORD:-$POSTGRES_PASSWORD}"
      temporary_server "${@:2}"
      create_database
      run_init_files
      pg_ctl -D "$PGDATA" -m fast -w stop
      unset PGPASSWORD
      echo 'The database is initialised; starting the server.'
    fi
  fi
  exec "$@"
}

main "$@"
