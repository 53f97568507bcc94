#!/bin/bash
# shellcheck source-path=SCRIPTDIR
# newer.sh: a Docker daemon of a newer release beside this machine's own, which it leaves alone. As root on Debian and its
# kin.
#
#   newer.sh run COMMAND...   starts it, with the images that tests run; runs the command on it; stops it
#   newer.sh start DIR        starts one without images that keeps everything below DIR, with its socket DIR/docker.sock
#   newer.sh stop DIR         stops that one
#
# It is the docker.io of Debian trixie (26.1) in a file tree of that release, in namespaces of its own: of processes, so that
# none outlives it, containers included; of mounts, with the tree as the root, since a daemon in a mere chroot runs
# commands in the files of the machine and not in those of the container; and of the network, since two daemons in one take
# each other's bridges and rules away. `run` enters that network, so published ports are on the command's own loopback.
# Nothing leads out of it.
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin" # where debootstrap and pivot_root live, even if the caller is no login shell
here=$(cd "$(dirname "$0")" && pwd)
suite=trixie
# Where the kernel has AppArmor on, no container starts without its parser; `docker top` runs ps.
packages=(docker.io apparmor iproute2 procps)
newer=26 # the major version that counts as such
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sandbar"
home="$cache/docker-newer"
tree="$home/$suite"
deadline=60

say() { printf 'docker-newer: %s\n' "$*"; }

give_up() {
  printf 'docker-newer: %s\n' "$@" >&2
  exit 1
}

on() { docker --host "unix://$1/docker.sock" "${@:2}"; }
version_on() { timeout 10 docker --host "unix://$1/docker.sock" version --format '{{.Server.Version}}' 2>/dev/null; }

# When a process began. With it a number is no other process's, not even after a reboot.
began() {
  local line fields
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The program's name stands in brackets and may hold anything; after it come the state and, 19 fields on, the start.
  read -ra fields <<<"${line##*) }"
  [ "${fields[0]}" != Z ] && echo "${fields[19]}"
}

# daemon_of DIR: the process id of the daemon that runs there, if one does.
daemon_of() {
  local pid start
  read -r pid start 2>/dev/null <"$1/pid" && [ "$(began "$pid")" = "$start" ] && echo "$pid"
}

is_made() { [ "$(cat "$tree/srv/packages" 2>/dev/null)" = "${packages[*]}" ]; }

# The tree, made where it is not there; in a mount namespace of its own, so that not even a kill leaves a mount behind.
ensure_tree() {
  is_made && return 0
  command -v apt-get >/dev/null || give_up "making a tree of Debian $suite takes apt, and there is none here."
  mkdir -p "$home" "$cache/images"
  # The tree without packages is shared with the stand-in images, and so is the lock on it.
  exec 8>"$cache/images.lock"
  flock -w 1800 8 || give_up "another run has been building for half an hour; giving up."
  if ! is_made; then
    say "making a tree of Debian $suite ..."
    if ! command -v debootstrap >/dev/null; then
      apt-get update -qq || true # one broken third-party source must not stop the rest
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap debian-archive-keyring
    fi >"$home/tree.log" 2>&1
    unshare --mount "$0" make-tree >>"$home/tree.log" 2>&1 || {
      tail -n 20 "$home/tree.log" >&2
      give_up "could not make it; all of it is in $home/tree.log."
    }
    say "made in $SECONDS s"
  fi
  exec 8>&-
}

make_tree() {
  local base work
  base="$cache/images/$suite-$(dpkg --print-architecture).tar"
  work="$home/work"
  rm -rf --one-file-system "$work"
  mkdir -p "$work"
  if [ -f "$base" ]; then
    tar -C "$work" --numeric-owner -xpf "$base"
  else
    debootstrap --variant=minbase "$suite" "$work"
  fi
  rm -f "$work/etc/resolv.conf"
  cp -L /etc/resolv.conf "$work/etc/resolv.conf"
  mountpoint -q "$work/proc" || mount -t proc proc "$work/proc"
  printf '#!/bin/sh\nexit 101\n' >"$work/usr/sbin/policy-rc.d"
  chmod 0755 "$work/usr/sbin/policy-rc.d"
  in_work() {
    chroot "$work" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
      apt-get -qq -y -o Acquire::Retries=3 -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
      -o Dpkg::Options::=--force-unsafe-io "$@"
  }
  in_work update
  in_work install "${packages[@]}"
  in_work clean
  umount "$work/proc"
  echo "${packages[*]}" >"$work/srv/packages"
  rm -rf --one-file-system "$tree"
  mv -T "$work" "$tree" # only a whole one gets its name
}

# start DIR: returns when the daemon answers.
start() {
  local dir=$1 unshared end
  ensure_tree
  mkdir -p "$dir"
  chmod 0700 "$dir"
  stop "$dir" # one that a killed run left
  rm -f "$dir/docker.sock"
  # A session and a log of its own, and none of the caller's pipes and locks.
  setsid nohup unshare --mount --net --pid --fork --kill-child "$0" become "$dir" </dev/null >"$dir/log" 2>&1 9>&- &
  unshared=$!
  end=$((SECONDS + deadline))
  until version_on "$dir" >/dev/null; do
    if ! began "$unshared" >/dev/null || [ "$SECONDS" -ge "$end" ]; then
      tail -n 20 "$dir/log" >&2
      stop "$dir"
      give_up "it did not start; all that it said is in $dir/log."
    fi
    sleep 0.1
  done
}

# The rest of a start, inside of the namespaces; ends in becoming the daemon.
become() {
  local dir=$1 pid
  # This /proc is still the outer one, so this is the number by which the outside knows this process.
  read -r pid _ </proc/self/stat
  echo "$pid $(began "$pid")" >"$dir/pid"
  mount --bind "$tree" "$tree"
  mount -o remount,bind,ro "$tree"
  mount -t proc proc "$tree/proc"
  mount --rbind /sys "$tree/sys" # with the control groups
  mount --rbind /dev "$tree/dev"
  mount -t tmpfs -o mode=755 tmpfs "$tree/run"
  mount -t tmpfs tmpfs "$tree/tmp"
  mount --bind "$dir" "$tree/srv"
  cd "$tree"
  pivot_root . mnt
  # The cgroup driver as it is without systemd, which is not to be found in here.
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 sh -c '
    umount -l /mnt && ip link set lo up && exec dockerd --host unix:///srv/docker.sock --group 0 --data-root /srv/data \
      --exec-root /run/docker --pidfile /run/docker.pid --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs'
}

# stop DIR: ends the daemon that was started there, and with it everything in its namespaces.
stop() {
  local pid end=$((SECONDS + 30))
  if pid=$(daemon_of "$1"); then
    kill -TERM "$pid" 2>/dev/null || true # once: the third makes it leave without cleaning up
    while daemon_of "$1" >/dev/null; do
      [ "$SECONDS" -lt "$end" ] || kill -KILL "$pid" 2>/dev/null || true
      sleep 0.1
    done
  fi
  rm -f "$1/pid"
}

# The image that a recipe stands in for, and the stand-in.
names_in() (
  # shellcheck disable=SC2034 # the recipe reads it
  images="$here/../images"
  # shellcheck source=../images/postgres/recipe.sh
  . "$1"
  echo "$upstream" "$tag"
)

# Of the images that tests run, those which this daemon has and the one in DIR has not.
copy_images() {
  local dir=$1 recipe image id wanted=()
  for recipe in "$here"/../images/*/recipe.sh; do
    for image in $(names_in "$recipe"); do
      id=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null) || continue
      [ "$(on "$dir" image inspect -f '{{.Id}}' "$image" 2>/dev/null)" = "$id" ] || wanted+=("$image")
    done
  done
  [ "${#wanted[@]}" -gt 0 ] || return 0
  say "copying ${wanted[*]} ..."
  docker save "${wanted[@]}" | on "$dir" load -q >/dev/null
  on "$dir" image prune -f >/dev/null # what these replace
}

run() {
  local own pid
  own=$(timeout 10 docker version --format '{{.Server.Version}}') || give_up "this machine's own daemon does not answer."
  if [ "${own%%.*}" -ge "$newer" ]; then
    say "this machine's own daemon is $own already, so nothing was run: $*"
    exit 0
  fi
  mkdir -p "$home/daemon"
  exec 9>"$home/lock"
  flock -w 1800 9 || give_up "another run has had the daemon for half an hour; giving up."
  trap 'stop "$home/daemon"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  start "$home/daemon"
  copy_images "$home/daemon"
  pid=$(daemon_of "$home/daemon")
  say "$(version_on "$home/daemon") beside $own, ready in $SECONDS s"
  DOCKER_HOST="unix://$home/daemon/docker.sock" nsenter --net="/proc/$pid/ns/net" -- "$@" 9>&-
}

usage() {
  echo "usage: $0 run COMMAND... | start DIR | stop DIR" >&2
  exit 2
}

[ "$#" -ge 2 ] || [ "${1:-}" = make-tree ] || usage
[ "$(id -u)" = 0 ] || give_up "only root can start a second daemon."
verb=$1
shift
case "$verb" in
  run) run "$@" ;;
  start | stop | become) "$verb" "$(realpath -m "$1")" ;;
  make-tree) make_tree ;;
  *) usage ;;
esac
