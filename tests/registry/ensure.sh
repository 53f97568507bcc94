#!/bin/sh
# Makes sure that there are a registry for the tests to run (Debian's docker-registry) and a busybox to put into it. Prints
# a line for each. One that cannot be had fails the tests that need it and nothing else, so it is no failure here: the demo
# is set up with the same scripts.
set -eu

PATH="$PATH:/usr/sbin:/sbin"
cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandbar"
registry="$cache/docker-registry"
mkdir -p "$cache"
log=$(mktemp)
part=$(mktemp -d "$cache/registry.XXXXXX")
trap 'rm -rf "$log" "$part"' EXIT

missing() {
  tail -n 5 "$log" >&2
  echo "registry: $1 is missing, which tests of images need; install it as your system does." >&2
}

# One broken third-party source must not stop the rest: whether the lists are good enough shows at the next step.
update() { [ "$(id -u)" != 0 ] || apt-get update -qq || true; }

# Unpacked and not installed: the package would start a registry of its own on port 5000.
fetch() {
  update
  (cd "$part" && apt-get download -qq docker-registry && dpkg-deb -x docker-registry_*.deb files) || return 1
  mv "$part/files/usr/bin/docker-registry" "$registry"
}

if command -v docker-registry >/dev/null; then
  echo "registry: $(command -v docker-registry)"
elif [ -x "$registry" ]; then
  echo "registry: $registry, fetched before"
elif fetch >"$log" 2>&1; then
  echo "registry: $registry, fetched now"
else
  missing docker-registry
fi

install_busybox() {
  update
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends busybox-static
}

# One that needs no libraries: it will be alone in its image.
is_static() { [ -x "$1" ] && ! ldd "$1" >/dev/null 2>&1; }

if is_static /bin/busybox || is_static /usr/bin/busybox; then
  echo "busybox: already here"
elif install_busybox >"$log" 2>&1; then
  echo "busybox: installed now"
else
  missing busybox-static
fi
