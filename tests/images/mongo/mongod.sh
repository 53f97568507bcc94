#!/bin/bash
# `mongod` of the MongoDB stand-in: FerretDB, started by mongod's options. An option, a parameter or a value that mongod
# would not take stops it as it would stop mongod; one about MongoDB's own storage is taken and has no effect.
set -euo pipefail

fail() {
  local code=$1
  shift
  printf '%s\n' "$@" >&2
  exit "$code"
}

declare -A option=()
while [ $# -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    --version) fail 0 'db version v8.0 (a stand-in: FerretDB)' ;;
    --help | -h) fail 0 'A stand-in for mongod; the options of mongod apply.' ;;
  esac
  [[ $argument == --* ]] || fail 2 'Error parsing command line: too many positional options have been specified on the command line'
  name=${argument#--}
  case $name in
    auth | bind_ip_all | fork | ipv6 | logappend | noauth | nounixsocket | quiet | shutdown) value=true ;;
    bind_ip | dbpath | logpath | maxConns | pidfilepath | port | setParameter | slowms | syncdelay | tlsMode | \
      wiredTigerCacheSizeGB | wiredTigerEngineConfigString)
      [ $# -gt 0 ] || fail 2 "Error parsing command line: the required argument for option '$argument' is missing"
      value=$1
      shift
      ;;
    bind_ip=* | dbpath=* | logpath=* | maxConns=* | pidfilepath=* | port=* | setParameter=* | slowms=* | syncdelay=* | \
      tlsMode=* | wiredTigerCacheSizeGB=* | wiredTigerEngineConfigString=*)
      value=${name#*=}
      name=${name%%=*}
      ;;
    *) fail 2 "Error parsing command line: unrecognised option '$argument'" "try 'mongod --help' for more information" ;;
  esac
  if [ "$name" = setParameter ]; then
    case $value in
      diagnosticDataCollectionEnabled=true | diagnosticDataCollectionEnabled=false) continue ;;
      indexBuildMinAvailableDiskSpaceMB=[0-9]*) continue ;;
      *) fail 2 "Unknown --setParameter '${value%%=*}' (the stand-in knows few of them)" ;;
    esac
  fi
  [ -z "${option[$name]:-}" ] || fail 2 "Error parsing command line: Multiple occurrences of option \"--$name\""
  option[$name]=$value
done

if [ -n "${option[wiredTigerCacheSizeGB]:-}" ]; then
  awk -v size="${option[wiredTigerCacheSizeGB]}" 'BEGIN { exit !(size >= 0.25 && size <= 10000) }' ||
    fail 2 "wiredTigerCacheSizeGB must be greater than or equal to 0.25"
fi
[[ ${option[tlsMode]:-disabled} == disabled ]] || fail 2 'the stand-in has no TLS'

dbpath=${option[dbpath]:-/data/db}
dbpath=${dbpath%/}
lock=$dbpath/mongod.lock

if [ -n "${option[shutdown]:-}" ]; then
  [ -s "$lock" ] || fail 1 "There doesn't seem to be a server running with dbpath: $dbpath"
  pid=$(<"$lock")
  kill "$pid"
  # Until it is gone, not only until somebody has waited for it.
  while grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$pid/status"; do sleep 0.02; done
  : >"$lock"
  exit 0
fi

[ -d "$dbpath" ] || fail 100 "NonExistentPath: Data directory $dbpath not found. Create the missing directory or specify another path using (1) the --dbpath command line option, or (2) by adding the 'storage.dbPath' option in the configuration file."
: >>"$lock" || fail 100 "IllegalOperation: Attempted to create a lock file on a read-only directory: $dbpath"
# What the entrypoint, like the official one, takes as the sign that there is a database.
: >>"$dbpath/storage.bson"

port=${option[port]:-27017}
address=${option[bind_ip]:-127.0.0.1}
case ${option[bind_ip_all]:-}$address in
  true* | '*' | 0.0.0.0) address=0.0.0.0 ;;
  localhost) address=127.0.0.1 ;;
  *,*) fail 2 'the stand-in listens on one address or on all of them' ;;
esac
[ "$address${option[ipv6]:-}" != 0.0.0.0true ] || address=

server=(ferretdb --handler=sqlite --sqlite-url="file:$dbpath/" --state-dir="$dbpath" --listen-addr="$address:$port"
  --debug-addr=- --telemetry=disable --log-level=error)
[ -z "${option[auth]:-}" ] || server+=(--test-enable-new-auth)

started() {
  echo "$1" >"$lock"
  [ -z "${option[pidfilepath]:-}" ] || echo "$1" >"${option[pidfilepath]}"
}

[ -z "${option[logpath]:-}" ] || exec >>"${option[logpath]}" 2>&1
if [ -n "${option[fork]:-}" ]; then
  [ -n "${option[logpath]:-}" ] || fail 2 'BadValue: --fork has to be used with --logpath or --syslog'
  "${server[@]}" </dev/null &
  started $!
  until (exec 3<>"/dev/tcp/${address:-127.0.0.1}/$port") 2>/dev/null; do
    kill -0 $! 2>/dev/null || fail 1 'ERROR: child process failed'
    sleep 0.02
  done
  exit 0
fi
started $$
exec "${server[@]}"
