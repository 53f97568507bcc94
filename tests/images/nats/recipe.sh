# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
upstream=nats:2-alpine
tag=sandbar-standin/nats:2
pull=yes
packages=(nats-server busybox)
config='
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  "ExposedPorts": {"4222/tcp": {}, "6222/tcp": {}, "8222/tcp": {}},
  "Cmd": ["nats-server"]'

prepare() { :; }

# Upstream's image is made of BusyBox, and this is the tool of it that is used.
finish() { ln -s /usr/bin/busybox "$tree/usr/local/bin/nc"; }

describe() { echo "Debian trixie NATS $(chroot "$tree" nats-server --version | sed 's/.*v//')"; }
