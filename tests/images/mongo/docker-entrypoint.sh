#!/bin/bash
# Entrypoint of the MongoDB stand-in. It takes the variables of the official image and does things in the same order, so
# that what works here works there.
set -euo pipefail

fail() {
  printf 'error: %s\n' "$@" >&2
  exit 1
}

# variable NAME: sets NAME from itself or from the file that NAME_FILE names.
variable() {
  local name=$1 file_name=${1}_FILE
  if [ -n "${!name:-}" ] && [ -n "${!file_name:-}" ]; then
    fail "both $name and $file_name are set; only one of them can count"
  fi
  [ -z "${!file_name:-}" ] || export "$name=$(<"${!file_name}")"
  : "${!name:=}"
  unset "$file_name"
}

# argument NAME "$@": the value of an option.
argument() {
  local name=$1
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      "$name") echo "${2:-}" && return ;;
      "$name="*) echo "${1#*=}" && return ;;
    esac
    shift
  done
  return 1
}

has() {
  local name=$1 given
  shift
  for given in "$@"; do
    case $given in "$name" | "$name="*) return 0 ;; esac
  done
  return 1
}

init_files() {
  local file
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in *.sh | *.js) return 0 ;; esac
  done
  return 1
}

# The options without those that a temporary server must not have.
temporary=()
temporary_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --auth | --bind_ip_all | --bind_ip=* | --port=* | --logpath=* | --pidfilepath=*) ;;
      --bind_ip | --port | --logpath | --pidfilepath) shift ;;
      *) temporary+=("$1") ;;
    esac
    shift
  done
}

# Only over the loopback: nobody must reach a server that asks for no login.
init_database() {
  local file pid_file="${TMPDIR:-/tmp}/docker-entrypoint-temp-mongod.pid" shell=(mongosh --host 127.0.0.1 --port 27017 --quiet)
  temporary_options "$@"
  "${temporary[@]}" --bind_ip 127.0.0.1 --port 27017 --tlsMode disabled --logpath "/proc/$$/fd/1" --logappend --pidfilepath "$pid_file" --fork
  if [ -n "$MONGO_INITDB_ROOT_USERNAME" ]; then
    "${shell[@]}" admin --eval 'db.createUser({ user: process.env.MONGO_INITDB_ROOT_USERNAME,
      pwd: process.env.MONGO_INITDB_ROOT_PASSWORD, roles: [{ role: "root", db: "admin" }] })'
  fi
  export MONGO_INITDB_DATABASE="${MONGO_INITDB_DATABASE:-test}"
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in
      *.sh)
        echo "$0: running $file"
        # shellcheck disable=SC1090
        . "$file"
        ;;
      *.js)
        echo "$0: running $file"
        "${shell[@]}" "$MONGO_INITDB_DATABASE" "$file"
        ;;
      '/docker-entrypoint-initdb.d/*') ;; # the folder is empty
      *) echo "$0: ignoring $file" ;;
    esac
  done
  "${temporary[@]}" --shutdown
  rm -f "$pid_file"
  echo 'MongoDB init process complete; ready for start up.'
}

case ${1:-} in -*) set -- mongod "$@" ;; esac

if [[ ${1:-} == mongo* ]] && [ "$(id -u)" = 0 ]; then
  [ "$1" != mongod ] || find /data/configdb /data/db ! -user mongodb -exec chown mongodb '{}' +
  chown --dereference mongodb "/proc/$$/fd/1" "/proc/$$/fd/2" || true
  exec setpriv --reuid=mongodb --regid=mongodb --init-groups "$0" "$@"
fi

if [ "${1:-}" = mongod ]; then
  variable MONGO_INITDB_ROOT_USERNAME
  variable MONGO_INITDB_ROOT_PASSWORD
  if [ -n "$MONGO_INITDB_ROOT_USERNAME" ] && [ -n "$MONGO_INITDB_ROOT_PASSWORD" ]; then
    has --auth "$@" || set -- "$@" --auth
  elif [ -n "$MONGO_INITDB_ROOT_USERNAME$MONGO_INITDB_ROOT_PASSWORD" ]; then
    fail 'MONGO_INITDB_ROOT_USERNAME and MONGO_INITDB_ROOT_PASSWORD take each other to make a user'
  fi
  path=$(argument --dbpath "$@") || path=/data/db
  if [ ! -e "$path/storage.bson" ]; then
    if [ -n "$MONGO_INITDB_ROOT_USERNAME" ] || init_files; then init_database "$@"; fi
  fi
  # mongod listens only on the loopback unless told otherwise.
  has --bind_ip "$@" || has --bind_ip_all "$@" || set -- "$@" --bind_ip_all
  unset "${!MONGO_INITDB_@}"
fi

exec "$@"
