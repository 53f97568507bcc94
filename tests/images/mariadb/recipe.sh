# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
upstream=mariadb:11
tag=sandbar-standin/mariadb:11
pull=yes
packages=(mariadb-server)
# Without upstream's entrypoint: the engine starts the server itself, with what both images have.
config='
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  "Volumes": {"/var/lib/mysql": {}},
  "ExposedPorts": {"3306/tcp": {}},
  "Cmd": ["mariadbd"]'

# Before the packages: they keep the account they find.
prepare() {
  chroot "$tree" groupadd --system --gid 999 mysql
  chroot "$tree" useradd --system --uid 999 --gid 999 --home-dir /home/mysql --no-create-home --shell /bin/sh mysql
}

# What the package made is a database that nobody asked for.
finish() {
  rm -rf "$tree/var/lib/mysql" "$tree/var/log/mysql"
  install -d -o 999 -g 999 -m 1777 "$tree/var/lib/mysql" "$tree/run/mysqld"
}

describe() { echo "Debian trixie MariaDB $(chroot "$tree" mariadbd --version | sed 's/.*Ver \([0-9.]*\).*/\1/')"; }
