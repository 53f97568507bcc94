# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
# Stands in for the image with all extensions that operators build; contrib is part of postgresql-17.
# shellcheck source=../postgres/recipe.sh
. "$images/postgres/recipe.sh"
upstream=sandbar-sandbox-pg:latest
tag=sandbar-standin/postgres-full:17
pull=no # it is in no registry
# The untrusted languages are here to be refused.
packages+=(postgresql-17-pgvector postgresql-17-postgis-3 postgresql-plpython3-17 postgresql-plperl-17)

# In the chroot, since control files may be links through /etc/alternatives.
extension() { chroot "$tree" sed -n "s/^default_version *= *'\(.*\)'/\1/p" "/usr/share/postgresql/17/extension/$1.control"; }

describe() {
  local version vector postgis
  version=$(chroot "$tree" /usr/lib/postgresql/17/bin/postgres -V | cut -d' ' -f3)
  vector=$(extension vector)
  postgis=$(extension postgis)
  echo "Debian trixie PostgreSQL $version with pgvector $vector and PostGIS $postgis"
}
