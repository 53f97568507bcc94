#!/bin/sh
# Makes sure that there are a registry for the tests to run (Debian's docker-registry) and a busybox to put into it. Prints
# a line for each.
set -eu

PATH="$PATH:/usr/sbin:/sbin"
cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar"
registry="$cache/docker-registry"

give_up() {
  printf 'registry: %s\n' "$@" >&2
  exit 1
}

# As root, since lists that are missing must be fetched; one broken third-party source must not stop the rest.
need_apt() {
  command -v apt-get >/dev/null || give_up "$1 is missing: install it as your system does."
  [ -z "${updated:-}" ] || return 0
  [ "$(id -u)" != 0 ] || apt-get update -qq || true
  updated=yes
}

if command -v docker-registry >/dev/null; then
  echo "registry: $(command -v docker-registry)"
elif [ -x "$registry" ]; then
  echo "registry: $registry, fetched before"
else
  # Unpacked and not installed: the package would start a registry of its own on port 5000.
  need_apt docker-registry
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/registry.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  (cd "$part" && apt-get download -qq docker-registry && dpkg-deb -x docker-registry_*.deb files) >"$part/log" 2>&1 || {
    cat "$part/log" >&2
    give_up "docker-registry could not be fetched."
  }
  mv "$part/files/usr/bin/docker-registry" "$registry"
  echo "registry: $registry, fetched now"
fi

# One that needs no libraries: it will be alone in its image.
is_static() { [ -x "$1" ] && ! ldd "$1" >/dev/null 2>&1; }

if is_static /bin/busybox || is_static /usr/bin/busybox; then
  echo "busybox: already here"
else
  need_apt busybox-static
  [ "$(id -u)" = 0 ] || give_up "busybox-static is missing: install it as root."
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends busybox-static >/dev/null
  echo "busybox: installed now"
fi
