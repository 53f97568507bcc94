# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
# Stands in for Redis Stack as far as search goes: Debian has no JSON or bloom module.
# shellcheck source=../redis/recipe.sh
. "$images/redis/recipe.sh"
upstream=redis/redis-stack-server:latest
tag=sandbar-standin/redis-full:8
packages+=(redis-redisearch)

eval "plain_$(declare -f prepare)"
eval "plain_$(declare -f finish)"

# Trixie dropped the module; the one of the release before it loads all the same. Nothing else comes from there.
prepare() {
  plain_prepare
  sed 's/trixie/bookworm/g' "$tree/etc/apt/sources.list" >"$tree/etc/apt/sources.list.d/bookworm.list"
  printf 'Package: *\nPin: release n=bookworm\nPin-Priority: 100\n' >"$tree/etc/apt/preferences.d/bookworm"
}

finish() {
  plain_finish
  rm "$tree/etc/apt/sources.list.d/bookworm.list" "$tree/etc/apt/preferences.d/bookworm"
  # Where Redis Stack keeps its modules and programs, and where the entrypoint looks for what it loads by itself.
  mkdir -p "$tree/opt/redis-stack/lib" "$tree/opt/redis-stack/bin"
  mv "$tree/usr/lib/redis/modules/redisearch.so" "$tree/opt/redis-stack/lib/"
  ln -s /opt/redis-stack/lib/redisearch.so "$tree/usr/local/lib/redis/modules/"
  ln -s /usr/bin/redis-server /usr/bin/redis-cli "$tree/opt/redis-stack/bin/"
}

describe() {
  local version module
  version=$(chroot "$tree" redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/')
  module=$(chroot "$tree" dpkg-query -W -f '${Version}' redis-redisearch)
  echo "Debian trixie Redis $version with RediSearch ${module#*:} (no JSON, no bloom)"
}
