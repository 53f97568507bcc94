#!/bin/bash
# shellcheck source-path=SCRIPTDIR
# build.sh RECIPE HASH: builds the stand-in image of the folder RECIPE and labels it with HASH. Called by ensure.sh, as
# root and under a lock.
#
# The image is one layer: a minimal Debian tree and the packages of the recipe. They are installed in a chroot, since
# steps of `docker build` may have no network; the tree without packages is kept, so debootstrap runs once.
set -euo pipefail

images=$(cd "$(dirname "$0")" && pwd)
recipe=$1
hash=$2
suite=trixie
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sandbar/images"
base="$cache/$suite-$(dpkg --print-architecture).tar"
umask 022

mkdir -p "$cache"
# Whoever holds the lock may sweep up after a run that was killed.
rm -rf --one-file-system "$cache"/work.*
work=$(mktemp -d "$cache/work.XXXXXX")
tree=$work/tree

unmount_all() {
  awk -v below="$work/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r point; do
    umount -l "$point"
  done
}

cleanup() {
  unmount_all
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

in_tree() {
  chroot "$tree" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" "$@"
}

make_base() {
  debootstrap --variant=minbase "$suite" "$tree"
  unmount_all
  tar -C "$tree" --one-file-system --numeric-owner -cf "$work/base.tar" .
  mv "$work/base.tar" "$base" # only a whole one gets its name
}

if [ -f "$base" ]; then
  mkdir -p "$tree"
  tar -C "$tree" --numeric-owner -xpf "$base"
else
  make_base
fi
chmod 0755 "$tree"
rm -f "$tree/etc/resolv.conf"
cp -L /etc/resolv.conf "$tree/etc/resolv.conf"
# Maintainer scripts may look at it, but none of ours must have it.
mount -t proc proc "$tree/proc" || true

# While packages are installed: start no service, write nothing that would be thrown away, do not wait for the disk.
printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
chmod 0755 "$tree/usr/sbin/policy-rc.d"
cat >"$tree/etc/dpkg/dpkg.cfg.d/standin" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/locale/*
END
apt_get() { in_tree apt-get -qq -y -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Install-Recommends=false -o APT::Sandbox::User=root "$@"; }

# shellcheck source=postgres/recipe.sh
. "$images/$recipe/recipe.sh"
prepare
apt_get update
apt_get install "${packages[@]}"
finish
about=$(describe)

unmount_all
rm -rf "$tree/usr/sbin/policy-rc.d" "$tree/etc/dpkg/dpkg.cfg.d/standin" "$tree"/var/lib/apt/lists/* "$tree"/var/cache/*/* \
  "$tree"/var/log/* "$tree"/usr/share/{doc,man,info,lintian,locale}/* "$tree"/tmp/*

# An archive for `docker load`: unlike `docker import` it can state every property of an image, and unlike a build it
# takes nothing but a daemon. Docker checks the layer against its digest, so what was cut short never gets the name.
tar -C "$tree" --one-file-system --numeric-owner --exclude='./dev/*' --exclude='./proc/*' -cf "$work/layer.tar" .
layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
cat >"$work/config.json" <<END
{
  "architecture": "$(docker version --format '{{.Server.Arch}}')",
  "os": "linux",
  "created": "$(date -u +%FT%TZ)",
  "config": {
    "Labels": {"standin.recipe": "$hash", "standin.about": "$about"},
    $config
  },
  "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]},
  "history": [{"created_by": "tests/images/build.sh $recipe"}]
}
END
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$tag\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
before=$(docker image inspect -f '{{.Id}}' "$tag" 2>/dev/null || true)
tar -C "$work" -cf - manifest.json config.json layer.tar | docker load
# Containers may still use the image that this one replaces; then it stays.
[ -z "$before" ] || docker image rm "$before" >/dev/null 2>&1 || true
