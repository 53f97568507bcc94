# shellcheck shell=bash disable=SC2034 # ensure.sh and build.sh read this
upstream=debian:bookworm-slim
tag=sandbar-standin/debian:13
pull=yes
packages=(base-files)
config='
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  "Cmd": ["bash"]'

prepare() { :; }

finish() { :; }

describe() { echo "Debian trixie $(cat "$tree/etc/debian_version")"; }
