# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
upstream=redis:8-alpine
tag=sandbar-standin/redis:8
pull=yes
packages=(redis-server redis-tools)
config='
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  "Volumes": {"/data": {}},
  "WorkingDir": "/data",
  "ExposedPorts": {"6379/tcp": {}},
  "Entrypoint": ["docker-entrypoint.sh"],
  "Cmd": ["redis-server"]'

# Before the packages: they keep the account they find.
prepare() {
  chroot "$tree" groupadd --system --gid 999 redis
  chroot "$tree" useradd --system --uid 999 --gid 999 --home-dir /data --no-create-home --shell /usr/sbin/nologin redis
}

finish() {
  install -d -o 999 -g 999 -m 0755 "$tree/data"
  install -d -m 0755 "$tree/usr/local/lib/redis/modules"
  install -m 0755 "$images/redis/docker-entrypoint.sh" "$tree/usr/local/bin/docker-entrypoint.sh"
}

describe() { echo "Debian trixie Redis $(chroot "$tree" redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/')"; }
