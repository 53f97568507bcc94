# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2016,SC2034,SC2154 # ensure.sh and build.sh read this
# MongoDB's server is not free software and no Debian package has it. FerretDB speaks its protocol, with its logins, over
# SQLite; the shell is MongoDB's own. Building them takes Go and npm; both check what they fetch against known hashes.
upstream=mongo:8
tag=sandbar-standin/mongo:8
pull=yes
packages=(nodejs)
ferretdb=v1.24.2
ferretdb_sum='h1:trrUU0LbmusMbyubhPS1IELncvrIwKrsRT2LW1UUWCw='
mongosh=2.12.0
esbuild=0.28.2
config='
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/data/db", "MONGO_MAJOR=8.0"],
  "Volumes": {"/data/db": {}, "/data/configdb": {}},
  "ExposedPorts": {"27017/tcp": {}},
  "Entrypoint": ["docker-entrypoint.sh"],
  "Cmd": ["mongod"]'

prepare() {
  local tool
  PATH="$PATH:/usr/local/go/bin"
  for tool in go npm; do
    command -v "$tool" >/dev/null || {
      echo "the stand-in for $upstream takes Go and npm to build, and there is no $tool" >&2
      return 1
    }
  done
  chroot "$tree" groupadd --system --gid 999 mongodb
  chroot "$tree" useradd --system --uid 999 --gid 999 --home-dir /data/db --no-create-home mongodb
}

# FerretDB knows no roles and, without logins, no users. An official image starts a server without logins to make a user
# with a role, so here a user can always be made and its roles are passed over: whoever logs in may do everything.
build_server() {
  local source=$work/ferretdb found
  found=$(cd / && GOTOOLCHAIN=local go mod download -json "github.com/FerretDB/FerretDB@$ferretdb")
  [[ $found == *"\"Sum\": \"$ferretdb_sum\""* ]] || {
    echo "FerretDB $ferretdb is not the one that is known here: $found" >&2
    return 1
  }
  cp -R "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$found")" "$source"
  chmod -R u+w "$source"
  sed -i '/^\tif h.EnableNewAuth {$/s/h.EnableNewAuth/true/' "$source/internal/handler/commands.go"
  sed -i '/UnimplementedNonDefault(document, "roles"/,/})/s/r.Len() == 0/r != nil/' \
    "$source"/internal/handler/msg_{create,update}user.go
  [ "$(grep -rlE '^	if true \{$|ok && r != nil$' "$source/internal/handler" | wc -l)" = 3 ]
  echo "$ferretdb" >"$source/build/version/version.txt"
  (cd "$source" && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false CGO_ENABLED=0 nice go build -trimpath -ldflags='-s -w' \
    -tags ferretdb_no_postgresql -o "$tree/usr/local/bin/ferretdb" ./cmd/ferretdb)
}

# One file instead of 160 MB of packages, without parts that are compiled and without completion, half of what is left.
build_shell() {
  local source=$work/mongosh lib=$tree/usr/local/lib/mongosh
  mkdir -p "$source" "$lib"
  echo '{"private": true}' >"$source/package.json"
  (cd "$source" && npm install --silent --no-audit --no-fund --no-update-notifier --ignore-scripts --omit=dev \
    "mongosh@$mongosh" "esbuild@$esbuild")
  echo "require('@mongosh/cli-repl/lib/run');" >"$source/entry.js"
  echo 'exports.MongoDBAutocompleter = class { async autocomplete() { return []; } };' >"$source/completion.js"
  # A function that mongosh.js calls; code that was compiled before cannot import modules while it runs.
  (cd "$source" && nice node_modules/.bin/esbuild entry.js --bundle --platform=node --target=node20 --minify-whitespace \
    --minify-syntax --supported:dynamic-import=false --alias:@mongodb-js/mongodb-ts-autocomplete=./completion.js \
    --external:electron --external:'*.node' --external:@babel/preset-typescript --legal-comments=none --log-level=error \
    --banner:js='(function (exports, require, module, __filename, __dirname) {' --footer:js='})' --outfile="$lib/bundle.js")
  install -m 0755 "$images/mongo/mongosh.js" "$lib/mongosh.js"
  ln -s ../lib/mongosh/mongosh.js "$tree/usr/local/bin/mongosh"
  in_tree env HOME=/tmp/mongosh MONGOSH_COMPILE=1 /usr/local/bin/mongosh --quiet --nodb --eval 1
  rm -rf "$tree/tmp/mongosh"
  [ -s "$lib/bundle.js.compiled" ]
}

finish() {
  build_server
  build_shell
  # Node's own development files, for compiled modules.
  rm -rf "$tree/usr/include/node"
  install -d -o 999 -g 999 -m 0755 "$tree/data" "$tree/data/db" "$tree/data/configdb"
  install -d -m 0755 "$tree/docker-entrypoint-initdb.d"
  install -m 0755 "$images/mongo/mongod.sh" "$tree/usr/local/bin/mongod"
  install -m 0755 "$images/mongo/docker-entrypoint.sh" "$tree/usr/local/bin/docker-entrypoint.sh"
}

describe() { echo "FerretDB ${ferretdb#v} (no MongoDB server: users without roles, no transactions) with mongosh $mongosh"; }
