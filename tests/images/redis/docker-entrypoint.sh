#!/bin/sh
# Entrypoint of the Redis stand-in; from the outside it acts as the official image's.
set -e

case ${1:-} in -* | *.conf) set -- redis-server "$@" ;; esac

if [ "${1:-}" = redis-server ] || [ "${1:-}" = redis-sentinel ]; then
  if [ "$(id -u)" = 0 ]; then
    find . ! -user redis -exec chown redis '{}' +
    exec setpriv --reuid=redis --regid=redis --clear-groups "$0" "$@"
  fi
  # What Redis writes holds data, so nobody else shall read it; a mask that somebody chose stays.
  [ "$(umask)" != 0022 ] || umask 0077
fi

if [ "${1:-}" = redis-server ]; then
  # The official build has no protected mode, Debian's has. Where a configuration file is given, that one decides.
  case ${2:-} in '' | --*)
    case " $* " in *' --protected-mode '*) ;; *) set -- "$@" --protected-mode no ;; esac
    ;;
  esac
  for module in /usr/local/lib/redis/modules/*.so; do
    [ ! -f "$module" ] || set -- "$@" --loadmodule "$module"
  done
fi

exec "$@"
