#!/bin/bash
# shellcheck source-path=SCRIPTDIR
# ensure.sh: makes sure that the images which the tests run exist, those with extensions and modules among them, and writes
# which ones these are as an [images] table to $SANDBAR_IMAGES_TOML.
#
# The official images are used where they are here or can be pulled. Where no registry is in reach, stand-ins are built
# from Debian packages, and mongo's from a Go module and npm packages (build.sh; as root on Debian), and kept in Docker,
# labelled with a hash of their recipe.
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin" # where debootstrap and chroot live, even if the caller is no login shell
images=$(cd "$(dirname "$0")" && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sandbar"
toml="${SANDBAR_IMAGES_TOML:-$cache/images.toml}"
recipes=(postgres redis mongo postgres-full redis-full mariadb nats debian)

give_up() {
  printf 'images: %s\n' "$@" >&2
  exit 1
}

# A pull that waits for an address nobody answers can take minutes each time, so a registry out of reach is
# remembered for a day.
no_registry="$cache/no-registry"
mkdir -p "$cache" "$(dirname "$toml")"
log=$(mktemp)
puller=
skipped=
cleanup() {
  [ -z "$puller" ] || kill "$puller" 2>/dev/null || true
  rm -f "$log"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Whether a registry answers shows in seconds; how long the rest of a pull takes depends on the line.
pull() {
  local waited=0
  if [ -n "$(find "$no_registry" -mmin -1440 2>/dev/null)" ]; then
    skipped=yes
    return 1
  fi
  timeout 600 docker pull "$1" >"$log" 2>&1 &
  puller=$!
  while kill -0 "$puller" 2>/dev/null; do
    # Docker says this once it has the image's manifest.
    if [ "$waited" -ge 200 ] && ! grep -q 'Pulling from' "$log"; then
      kill "$puller" 2>/dev/null || true
      echo 'no answer within 20 s' >>"$log"
      break
    fi
    sleep 0.1
    waited=$((waited + 1))
  done
  if wait "$puller"; then
    puller=
    rm -f "$no_registry"
    return 0
  fi
  puller=
  echo "$1: cannot be pulled: $(tail -n 1 "$log")"
  # A registry that refuses one image may have the next.
  grep -qiE 'Pulling from|manifest|not found|denied|unauthorized|toomanyrequests' "$log" || touch "$no_registry"
  return 1
}

label() { docker image inspect -f "{{index .Config.Labels \"$2\"}}" "$1" 2>/dev/null || true; }

# Of all that a stand-in is made from; a full one is made from the plain one's folder too.
recipe_hash() {
  (cd "$images" && find build.sh "$1" "${1%-full}" -type f | LC_ALL=C sort -u | xargs sha256sum | sha256sum | cut -c1-16)
}

# Installs what is not there yet, and knows where it cannot.
need_tools() {
  command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] && return 0
  [ "$(id -u)" = 0 ] || give_up "building stand-ins takes root: run $0 as root once, or pull the images named above."
  command -v apt-get >/dev/null || give_up "building stand-ins takes debootstrap and apt: pull the images named above instead."
  export DEBIAN_FRONTEND=noninteractive
  # One broken third-party source must not stop the rest.
  apt-get update -qq || true
  # Other systems than Debian lack the keys that its archive is signed with.
  apt-get install -y -qq --no-install-recommends debootstrap debian-archive-keyring >/dev/null
}

build() {
  local recipe=$1 hash=$2 isolate=(unshare --mount)
  need_tools
  # In a mount namespace of its own, so that not even a kill leaves a mount behind.
  "${isolate[@]}" true 2>/dev/null || isolate=()
  "${isolate[@]}" "$images/build.sh" "$recipe" "$hash" >"$cache/build-$recipe.log" 2>&1 || {
    tail -n 20 "$cache/build-$recipe.log" >&2
    give_up "could not build the stand-in $recipe; all of it is in $cache/build-$recipe.log."
  }
}

# Sets `line` (what to write) for one recipe.
ensure() {
  local recipe=$1 upstream tag pull hash how='built before'
  # shellcheck source=postgres/recipe.sh
  . "$images/$recipe/recipe.sh"
  line=
  if docker image inspect "$upstream" >/dev/null 2>&1; then
    echo "$upstream: upstream's, already here"
    return
  fi
  if [ "$pull" = yes ] && pull "$upstream"; then
    echo "$upstream: upstream's, pulled now"
    return
  fi
  hash=$(recipe_hash "$recipe")
  if [ "$(label "$tag" standin.recipe)" != "$hash" ]; then
    exec 9>"$cache/images.lock"
    flock -w 1800 9 || give_up "another run has been building for half an hour; giving up."
    # It may have built this very one.
    if [ "$(label "$tag" standin.recipe)" != "$hash" ]; then
      echo "$upstream: building a stand-in ..."
      build "$recipe" "$hash"
      how="built in $SECONDS s"
    fi
    exec 9>&-
  fi
  echo "stand-in: $(label "$tag" standin.about) for $upstream ($tag, $how)"
  line="\"$upstream\" = \"$tag\""
}

"$images/../docker/ensure.sh" || exit 1
table='[images]'
for recipe in "${recipes[@]}"; do
  SECONDS=0
  ensure "$recipe"
  [ -z "$line" ] || table+=$'\n'$line
done
if [ -n "$skipped" ]; then
  echo "(not pulled: no registry was in reach at $(date -r "$no_registry" '+%F %T'); remove $no_registry to try again within a day)"
fi
part=$(mktemp "$toml.XXXXXX")
printf '# Written by tests/images/ensure.sh: upstream image = what the tests run instead.\n%s\n' "$table" >"$part"
chmod 0644 "$part"
mv "$part" "$toml"
echo "wrote $toml"
