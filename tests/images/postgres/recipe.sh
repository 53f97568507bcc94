# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
upstream=postgres:16-alpine
tag=sandbar-standin/postgres:17
pull=yes
packages=(postgresql-17)
config='
  "Env": [
    "PATH=/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "PG_MAJOR=17",
    "PGDATA=/var/lib/postgresql/data"
  ],
  "Volumes": {"/var/lib/postgresql/data": {}},
  "ExposedPorts": {"5432/tcp": {}},
  "StopSignal": "SIGINT",
  "Entrypoint": ["docker-entrypoint.sh"],
  "Cmd": ["postgres"]'

# Before the packages: they keep the account they find, and make no cluster if told so.
prepare() {
  chroot "$tree" groupadd --system --gid 999 postgres
  chroot "$tree" useradd --system --uid 999 --gid 999 --home-dir /var/lib/postgresql --shell /bin/bash postgres
  mkdir -p "$tree/etc/postgresql-common"
  echo 'create_main_cluster = false' >"$tree/etc/postgresql-common/createcluster.conf"
}

finish() {
  local lib=$tree/usr/lib/postgresql/17/lib
  # The official image listens on every address unless told otherwise.
  sed -i "s/^#listen_addresses = .*/listen_addresses = '*'/" "$tree/usr/share/postgresql/17/postgresql.conf.sample"
  grep -q "^listen_addresses = '\*'" "$tree/usr/share/postgresql/17/postgresql.conf.sample"
  # Half of the image would be LLVM. Postgres goes without compiled queries when the provider is not there.
  rm -rf "$lib/llvmjit.so" "$lib/llvmjit_types.bc" "$lib/bitcode" "$tree"/usr/lib/*/libLLVM*
  # A key that every container would share.
  rm -f "$tree/etc/ssl/private/ssl-cert-snakeoil.key" "$tree/etc/ssl/certs/ssl-cert-snakeoil.pem"
  install -d -o 999 -g 999 -m 1777 "$tree/var/lib/postgresql/data"
  install -d -o 999 -g 999 -m 3777 "$tree/run/postgresql"
  install -d -o 0 -g 0 -m 0755 "$tree/docker-entrypoint-initdb.d"
  install -m 0755 "$images/postgres/docker-entrypoint.sh" "$tree/usr/local/bin/docker-entrypoint.sh"
}

describe() { echo "Debian trixie PostgreSQL $(chroot "$tree" /usr/lib/postgresql/17/bin/postgres -V | cut -d' ' -f3)"; }
