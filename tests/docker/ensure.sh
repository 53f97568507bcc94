#!/bin/sh
# Makes sure that a Docker daemon answers; prints one line that says how.
#
# A daemon that answers, wherever DOCKER_HOST points, is left alone. Otherwise, as root on Debian and its kin, Docker is
# installed and started. The daemon outlives this script: stop it with `kill "$(cat /var/run/docker.pid)"`.
set -eu

PATH="$PATH:/usr/sbin:/sbin" # where dockerd and iptables live, even if the caller is no login shell
cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar"
log="$cache/dockerd.log"
pid_file="$cache/dockerd.pid"
deadline=60

say() { printf 'docker: %s\n' "$*"; }

give_up() {
  printf 'docker: %s\n' "$@" >&2
  exit 1
}

# `docker version` needs an answer from the daemon, unlike `docker info` of some clients; a daemon that hangs is as
# bad as none.
server_version() { timeout 10 docker version --format '{{.Server.Version}}' 2>/dev/null; }

answers() { command -v docker >/dev/null && server_version >/dev/null; }

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  # One broken third-party source must not stop the rest: whether the lists are good enough shows at the install.
  apt-get update -qq || true
  apt-get install -y -qq --no-install-recommends "$@"
}

# runs PID PROGRAM. After a reboot or a restored snapshot a number may belong to anybody, and dockerd would believe it;
# and a dead process that nobody waits for keeps its number and its name, but not its program.
runs() {
  case "$(readlink "/proc/$1/exe")" in */"$2" | */"$2 (deleted)") ;; *) return 1 ;; esac
}

# The number in a file, or one that nobody has.
pid_in() { cat "$1" 2>/dev/null || echo none; }

clear_leftovers() {
  runs "$(pid_in /var/run/docker.pid)" dockerd || rm -f /var/run/docker.pid
  # dockerd would wait for this process, and in the end kill it.
  file=/var/run/docker/containerd/containerd.pid
  runs "$(pid_in $file)" containerd || rm -f "$file"
  # The mere existence of this socket makes dockerd use it instead of a containerd of its own.
  if [ -S /run/containerd/containerd.sock ] && ! grep -q ' \(/var\)\?/run/containerd/containerd\.sock$' /proc/net/unix; then
    rm -f /run/containerd/containerd.sock
  fi
}

# Without the devices controller dockerd does not start, and without the others limits are ignored. An init system has
# mounted them long ago; where there is none, nobody has. What is mounted stays as it is.
mount_cgroups() {
  root=/sys/fs/cgroup
  [ "$(stat -f -c %T "$root")" = cgroup2fs ] && return 0
  mountpoint -q "$root" || mount -t tmpfs -o mode=755 cgroup "$root"
  awk '!/^#/ && $4 == 1 { print $1 }' /proc/cgroups | while read -r controller; do
    case "$controller" in
      cpu | cpuacct | cpuset | memory | devices | freezer | blkio | pids) ;;
      *) continue ;;
    esac
    # Two controllers may share a hierarchy, so look at the mount's options and not at its path.
    awk -v c="$controller" '/ - cgroup / { n = split($NF, o, ","); for (i = 1; i <= n; i++) if (o[i] == c) found = 1 }
      END { exit !found }' /proc/self/mountinfo && continue
    mkdir -p "$root/$controller"
    mount -t cgroup -o "$controller" cgroup "$root/$controller" || rmdir "$root/$controller"
  done
}

# Returns when the daemon answers; $1, where given, is the process without which waiting is pointless.
await() {
  end=$(($(date +%s) + deadline))
  until answers; do
    [ -z "${1:-}" ] || [ -n "$(readlink "/proc/$1/exe")" ] || return 1
    [ "$(date +%s)" -lt "$end" ] || return 1
    sleep 0.2
  done
}

if answers; then
  say "answers already (server $(server_version)${DOCKER_HOST:+ at $DOCKER_HOST}), left alone"
  exit 0
fi

case "${DOCKER_HOST:-}" in
  '' | unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
  *) give_up "no daemon answers at DOCKER_HOST=$DOCKER_HOST." \
    "Start that one, or unset DOCKER_HOST to use (or start) a daemon on this machine." ;;
esac
[ "$(id -u)" = 0 ] || give_up "no daemon answers, or you may not talk to it, and only root can change that." \
  "If one runs: join the group docker and log in again." \
  "If none runs: start it (sudo systemctl start docker), or run this script as root." \
  "If it runs elsewhere: set DOCKER_HOST."
command -v dockerd >/dev/null || command -v apt-get >/dev/null || give_up \
  "no daemon answers, and without apt-get this script cannot install one." \
  "Install Docker the way your system does and start it, or set DOCKER_HOST to a daemon elsewhere."

mkdir -p "$cache"
# Two test runs that begin together must not start two daemons.
exec 9>"$cache/docker.lock"
flock -w 300 9 || give_up "another run has been at this for five minutes; see $log."
if answers; then
  say "answers by now (server $(server_version)), started by somebody else"
  exit 0
fi

did=started
if ! command -v dockerd >/dev/null || ! command -v docker >/dev/null; then
  # Of what docker.io recommends: without apparmor no container starts where the kernel has it on; pulls need certificates.
  {
    apt_install docker.io apparmor ca-certificates &&
      # Newer releases ship the client apart from the daemon.
      { command -v docker >/dev/null || apt_install docker-cli; }
  } >"$cache/docker-install.log" 2>&1 9>&- || {
    tail -n 20 "$cache/docker-install.log" >&2
    give_up "could not install Docker; all that apt said is in $cache/docker-install.log."
  }
  did='installed, started'
fi

if [ -d /run/systemd/system ]; then
  # The daemon is systemd's business, and so is its log.
  systemctl start docker 9>&- || give_up "systemctl could not start docker; see: journalctl -u docker"
  await || give_up "docker.service does not answer within $deadline s; see: journalctl -u docker"
  say "$did by systemd (server $(server_version))"
  exit 0
fi

clear_leftovers
for file in /var/run/docker.pid /var/run/docker-ssd.pid; do
  daemon=$(pid_in "$file")
  runs "$daemon" dockerd || continue
  # It may have been started a moment ago: the package's init script does that, and keeps a pid file of its own.
  await "$daemon" || give_up "dockerd runs (pid $daemon) but does not answer within $deadline s; stop it and try again."
  say "$did (pid $daemon, server $(server_version), not by this script)"
  exit 0
done

mount_cgroups
# A session and a log of its own: the daemon must survive this terminal, and must not hold the caller's pipe or lock open.
setsid nohup dockerd </dev/null >"$log" 2>&1 9>&- &
daemon=$!
echo "$daemon" >"$pid_file"
if ! await "$daemon"; then
  tail -n 30 "$log" >&2
  if kill "$daemon" 2>/dev/null; then
    give_up "dockerd does not answer within $deadline s and was stopped; its log is $log."
  fi
  give_up "dockerd ended; its log is $log."
fi
say "$did (pid $daemon, server $(server_version), log $log)"
