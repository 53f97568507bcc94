#!/bin/bash
# shellcheck disable=SC2016,SC2054 # what stands in single quotes is for the container; --tmpfs has commas
# check.sh: runs the images that ensure.sh settled on, the way the engines and ordinary users do, and says
# where they act unlike the official ones. Removes every container it makes.
set -euo pipefail

images=$(cd "$(dirname "$0")" && pwd)
mark="standin-check-$$"
scratch=$(mktemp -d)
SANDBAR_IMAGES_TOML="$scratch/images.toml" "$images/ensure.sh"

cleanup() {
  # Only what carries this run's own mark.
  docker ps -aq --filter "label=$mark" | xargs -r docker rm -fv >/dev/null
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

image() {
  local mapped
  mapped=$(sed -n "s|^\"$1\" = \"\(.*\)\"|\1|p" "$scratch/images.toml")
  echo "${mapped:-$1}"
}

failures=0
# expect WHAT WANTED COMMAND...: the command's output, both streams, must match the pattern WANTED.
expect() {
  local what=$1 wanted=$2 got
  shift 2
  got=$("$@" 2>&1 </dev/null) || true
  # shellcheck disable=SC2053 # a pattern on purpose
  if [[ $got == $wanted ]]; then
    echo "ok    $what"
  else
    echo "FAIL  $what: wanted $wanted, got: $got"
    failures=$((failures + 1))
  fi
}

create() { docker create --label "$mark" "$@"; }
run() { docker run -d --label "$mark" "$@"; }
# put FROM TO: newer versions of Docker say something unless told not to, older ones cannot be told.
put() { docker cp -q "$1" "$2" 2>/dev/null || docker cp "$1" "$2"; }
once() { docker run --rm --label "$mark" "$@"; }
address() { docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }
state() { docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$1"; }
owner() { docker exec "$1" stat -c %U /proc/1; }

# until_ok COMMAND...: again and again, for at most 30 s.
until_ok() {
  local end=$((SECONDS + 30))
  until "$@" >/dev/null 2>&1 </dev/null; do
    [ "$SECONDS" -lt "$end" ] || return 0 # what follows reports it
    sleep 0.1
  done
}

milliseconds() {
  local start
  start=$(date +%s%N)
  "$@" >/dev/null
  echo $((($(date +%s%N) - start) / 1000000))
}
stops() { [ "$(milliseconds docker stop -t 9 "$1")" -lt 4000 ] && echo quick; }

postgres=$(image postgres:16-alpine)
redis=$(image redis:8-alpine)
mongo=$(image mongo:8)

# Over the network and from another container, as a tenant comes.
query() { once -e PGPASSWORD="$2" -e PGCONNECT_TIMEOUT=5 --entrypoint psql "$postgres" -h "$1" -U "$3" -d "$4" -Atwc "$5"; }

echo "postgres without any privilege, data below a tmpfs:"
locked=(--user postgres --cap-drop ALL --security-opt no-new-privileges
  --tmpfs /var/lib/postgresql/data:rw,mode=1777,size=256m -e PGDATA=/var/lib/postgresql/data/pgdata)
mkdir "$scratch/init"
cat >"$scratch/init/10-sourced.sh" <<'END'
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<SQL
CREATE ROLE sandbox LOGIN PASSWORD '$TENANT_PASSWORD';
CREATE DATABASE sandbox OWNER sandbox;
SQL
END
printf '#!/bin/sh\nexec psql -U "$POSTGRES_USER" -d "$POSTGRES_DB" -c "CREATE TABLE executed ()"\n' >"$scratch/init/20-executed.sh"
echo 'CREATE TABLE plain ();' >"$scratch/init/30-plain.sql"
echo 'CREATE TABLE zipped ();' | gzip >"$scratch/init/40-zipped.sql.gz"
chmod 0644 "$scratch"/init/*
chmod 0755 "$scratch/init/20-executed.sh"
id=$(create "${locked[@]}" -e POSTGRES_PASSWORD=right -e TENANT_PASSWORD=tenant "$postgres" -c fsync=off)
put "$scratch/init/." "$id:/docker-entrypoint-initdb.d/"
docker start "$id" >/dev/null
until_ok docker exec -e PGPASSWORD=tenant "$id" sh -c 'psql -h "$(hostname -i)" -U sandbox -wc "SELECT 1"'
ip=$(address "$id")
expect 'right password' 1 query "$ip" right postgres postgres 'SELECT 1'
expect 'account of an init script' sandbox query "$ip" tenant sandbox sandbox 'SELECT current_user'
expect 'wrong password' '*password authentication failed*' query "$ip" wrong postgres postgres 'SELECT 1'
expect 'empty password' '*no password supplied*' query "$ip" '' postgres postgres 'SELECT 1'
expect 'init files of each kind' 'executed plain zipped' query "$ip" right postgres postgres \
  "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname IN ('executed', 'plain', 'zipped')"
expect 'options of the command' off query "$ip" right postgres postgres 'SHOW fsync'
expect 'encoding' UTF8 query "$ip" right postgres postgres 'SHOW server_encoding'
expect 'passwords are stored as scram' 'SCRAM-SHA-256*' query "$ip" right postgres postgres "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'"
expect 'stop' quick stops "$id"
expect 'exit code' 'exited 0' state "$id"

echo "postgres as ordinary users run it:"
printf 'from a file' >"$scratch/password"
chmod 0644 "$scratch/password"
id=$(create -e POSTGRES_PASSWORD_FILE=/password -e POSTGRES_USER=app -e POSTGRES_DB=shop "$postgres")
put "$scratch/password" "$id:/password"
docker start "$id" >/dev/null
reachable='PGPASSWORD="from a file" psql -h "$(hostname -i)" -U app -d shop -wc "SELECT 1"'
until_ok docker exec "$id" sh -c "$reachable"
expect 'user, database, password file' 'app shop' query "$(address "$id")" 'from a file' app shop "SELECT current_user || ' ' || current_database()"
expect 'privileges are dropped' postgres owner "$id"
query "$(address "$id")" 'from a file' app shop 'CREATE TABLE kept ()' >/dev/null
expect 'restart' quick stops "$id"
docker start "$id" >/dev/null
until_ok docker exec "$id" sh -c "$reachable"
expect 'data after a restart' 0 query "$(address "$id")" 'from a file' app shop 'SELECT count(*) FROM kept'
expect 'no password' '*POSTGRES_PASSWORD*' once "$postgres"
id=$(run "$postgres")
expect 'exit code without one' 1 docker wait "$id"
expect 'password twice' '*both*' once -e POSTGRES_PASSWORD=a -e POSTGRES_PASSWORD_FILE=/etc/hostname "$postgres"
id=$(run -e POSTGRES_HOST_AUTH_METHOD=trust -e POSTGRES_INITDB_ARGS='--data-checksums --locale="C"' "$postgres")
until_ok docker exec "$id" sh -c 'psql -h "$(hostname -i)" -U postgres -wc "SELECT 1"'
expect 'trust and arguments of initdb' 'on' query "$(address "$id")" '' postgres postgres 'SHOW data_checksums'
expect 'only help' 'postgres (PostgreSQL) 1*' once "$postgres" --version
expect 'another command' root once "$postgres" id -un

command_of() { once --network "container:$1" --entrypoint redis-cli "$redis" -h "$(address "$1")" "${@:2}"; }

echo "redis without any privilege, configured from its environment:"
script='exec redis-server - <<END
requirepass $PASSWORD
maxmemory 64mb
save ""
END'
id=$(run --user redis --cap-drop ALL --security-opt no-new-privileges --tmpfs /data:rw,mode=1777,size=64m -e PASSWORD=right --entrypoint sh "$redis" -c "$script")
until_ok docker exec -e REDISCLI_AUTH=right "$id" redis-cli get x
expect 'right password' PONG command_of "$id" --no-auth-warning -a right ping
expect 'wrong password' '*NOAUTH*' command_of "$id" --no-auth-warning -a wrong ping
expect 'no password' 'NOAUTH*' command_of "$id" ping
expect 'arguments of the server' 'redis-server *:6379*' docker exec "$id" sh -c 'tr "\0" " " </proc/1/cmdline'
expect 'stop' quick stops "$id"
docker start "$id" >/dev/null
until_ok docker exec -e REDISCLI_AUTH=right "$id" redis-cli get x
expect 'password after a restart' PONG command_of "$id" --no-auth-warning -a right ping
expect 'stop again' quick stops "$id"
expect 'exit code' 'exited 0' state "$id"

echo "redis as ordinary users run it:"
id=$(run "$redis")
until_ok docker exec "$id" redis-cli get x
expect 'reachable without a password' PONG command_of "$id" ping
expect 'privileges are dropped' redis owner "$id"
docker exec "$id" redis-cli save >/dev/null
expect 'what it writes is private' 600 docker exec "$id" stat -c %a /data/dump.rdb
id=$(run "$redis" --requirepass right)
until_ok docker exec -e REDISCLI_AUTH=right "$id" redis-cli get x
expect 'options alone' 'NOAUTH*' command_of "$id" ping
echo 'requirepass right' >"$scratch/redis.conf"
id=$(create "$redis" /redis.conf)
put "$scratch/redis.conf" "$id:/redis.conf"
docker start "$id" >/dev/null
until_ok docker exec -e REDISCLI_AUTH=right "$id" redis-cli get x
expect 'a configuration file' PONG command_of "$id" --no-auth-warning -a right ping
expect 'another command' root once "$redis" id -un

# ask HOST LOGIN JAVASCRIPT: over the network and from another container; LOGIN is "user:password@" or nothing.
ask() { once -e URI="mongodb://$2$1:27017/?authSource=admin" --entrypoint mongosh "$mongo" --quiet --nodb --eval "db = connect(process.env.URI); $3"; }
answers() { docker exec "$1" mongosh --quiet --host "$(address "$1")" --eval 1; }
secrets() { { docker top "$1" -eo pid,args && docker logs "$1" 2>&1; } | grep -c "$2" || true; }

echo "mongo without any privilege, data below a tmpfs, its account made by an init script:"
cat >"$scratch/init/account.js" <<'END'
db.getSiblingDB('admin').createUser({ user: 'sandbox', pwd: process.env.PASSWORD, roles: ['root'] });
END
chmod 0644 "$scratch/init/account.js"
script='mkdir /data/db/below/data && exec docker-entrypoint.sh "$@"'
id=$(create --user mongodb --cap-drop ALL --security-opt no-new-privileges --tmpfs /data/db/below:rw,mode=1777,size=192m -e HOME=/tmp \
  -e PASSWORD=rightone --entrypoint sh "$mongo" -c "$script" sh mongod --auth --dbpath /data/db/below/data --maxConns 150 --syncdelay 5 \
  --wiredTigerEngineConfigString 'cache_size=96MB,log=(file_max=8MB)' --setParameter diagnosticDataCollectionEnabled=false \
  --setParameter indexBuildMinAvailableDiskSpaceMB=0)
put "$scratch/init/account.js" "$id:/docker-entrypoint-initdb.d/"
docker start "$id" >/dev/null
until_ok answers "$id"
ip=$(address "$id")
expect 'right password' sandbox ask "$ip" sandbox:rightone@ 'print(db.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers[0].user)'
expect 'wrong password' '*Authentication failed*' ask "$ip" sandbox:wrong@ 'print(db.adminCommand({ listDatabases: 1 }).ok)'
expect 'empty password' '*Authentication failed*' ask "$ip" sandbox:@ 'print(db.adminCommand({ listDatabases: 1 }).ok)'
expect 'no login' '*requires authentication*' ask "$ip" '' 'print(db.adminCommand({ listDatabases: 1 }).ok)'
expect 'documents' 2 ask "$ip" sandbox:rightone@ 'db.books.insertMany([{ n: 1 }, { n: 2 }]); print(db.books.find({ n: 2 }).toArray()[0].n)'
expect 'an index' '*E11000*' ask "$ip" sandbox:rightone@ 'db.books.createIndex({ n: 1 }, { unique: true }); db.books.insertOne({ n: 1 })'
expect 'an account of the account' app ask "$ip" sandbox:rightone@ \
  'db.getSiblingDB("admin").createUser({ user: "app", pwd: "app", roles: [{ role: "readWrite", db: "shop" }] }); print("app")'
expect 'passwords shown' 0 secrets "$id" rightone
expect 'stop' quick stops "$id"
expect 'exit code' 'exited 0' state "$id"

echo "mongo as ordinary users run it:"
echo 'db.scripted.insertOne({})' >"$scratch/init/script.js"
chmod 0644 "$scratch/init/script.js"
printf fromfile >"$scratch/password"
id=$(create -e MONGO_INITDB_ROOT_USERNAME=app -e MONGO_INITDB_ROOT_PASSWORD_FILE=/password -e MONGO_INITDB_DATABASE=shop "$mongo")
put "$scratch/password" "$id:/password"
put "$scratch/init/script.js" "$id:/docker-entrypoint-initdb.d/"
docker start "$id" >/dev/null
until_ok answers "$id"
expect 'user, database, password file' 1 ask "$(address "$id")" app:fromfile@ 'print(db.getSiblingDB("shop").scripted.countDocuments())'
expect 'privileges are dropped' mongodb owner "$id"
expect 'restart' quick stops "$id"
docker start "$id" >/dev/null
until_ok answers "$id"
expect 'data after a restart' 1 ask "$(address "$id")" app:fromfile@ 'print(db.getSiblingDB("shop").scripted.countDocuments())'
expect 'no login' '*requires authentication*' ask "$(address "$id")" '' 'print(db.adminCommand({ listDatabases: 1 }).ok)'
expect 'a user without a password' '*MONGO_INITDB_ROOT_PASSWORD*' once -e MONGO_INITDB_ROOT_USERNAME=app "$mongo"
expect 'password twice' '*both*' once -e MONGO_INITDB_ROOT_PASSWORD=a -e MONGO_INITDB_ROOT_PASSWORD_FILE=/etc/hostname "$mongo"
id=$(run "$mongo" --wiredTigerCacheSizeGB 0.25)
until_ok answers "$id"
expect 'options alone, no login' 1 ask "$(address "$id")" '' 'print(db.adminCommand({ listDatabases: 1 }).ok)'
expect 'an option of former versions' '*unrecognised option*nojournal*' once "$mongo" --nojournal
expect 'a parameter that is none' '*Unknown --setParameter*' once "$mongo" --setParameter nothing=1
expect 'a cache too small' '*0.25*' once "$mongo" --wiredTigerCacheSizeGB 0.1
expect 'no folder' '*Data directory /none not found*' once "$mongo" --dbpath /none
expect 'another command' root once "$mongo" id -un

echo "the images with features:"
postgres=$(image sandbar-sandbox-pg:latest)
redis=$(image redis/redis-stack-server:latest)
id=$(run "${locked[@]}" -e POSTGRES_PASSWORD=right "$postgres")
until_ok docker exec -e PGPASSWORD=right "$id" sh -c 'psql -h "$(hostname -i)" -U postgres -wc "SELECT 1"'
for extension in vector postgis pg_trgm citext uuid-ossp; do
  expect "$extension" 'CREATE EXTENSION' query "$(address "$id")" right postgres postgres "CREATE EXTENSION \"$extension\""
done
expect 'vectors' 5 query "$(address "$id")" right postgres postgres "SELECT '[0,3]'::vector <-> '[4,0]'"
expect 'geometry' 5 query "$(address "$id")" right postgres postgres "SELECT ST_Distance('POINT(0 3)'::geometry, 'POINT(4 0)'::geometry)"
expect 'untrusted languages to refuse' 2 query "$(address "$id")" right postgres postgres \
  "SELECT count(*) FROM pg_available_extensions WHERE name IN ('plpython3u', 'plperlu')"
expect 'stop' quick stops "$id"
# From a path of Redis Stack's, as a configuration would name it.
id=$(run --user redis --cap-drop ALL --entrypoint sh "$redis" -c 'exec redis-server - <<END
protected-mode no
loadmodule /opt/redis-stack/lib/redisearch.so
END')
until_ok docker exec "$id" redis-cli get x
expect 'search' OK command_of "$id" FT.CREATE books SCHEMA title TEXT
id=$(run "$redis")
until_ok docker exec "$id" redis-cli get x
expect 'search by the entrypoint' OK command_of "$id" FT.CREATE books SCHEMA title TEXT

[ "$failures" = 0 ] || {
  echo "$failures failed"
  exit 1
}
echo "all as expected"
