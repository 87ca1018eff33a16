# shellcheck shell=bash
# Functions for tests that run programs in the root directory of another Debian.
#
# The tests must run as root. Downloaded packages are kept in the cache folder for the next run.

roots_cache=${XDG_CACHE_HOME:-$HOME/.cache}/syncgrads/roots

# Prints the URI of the first package archive that apt uses on this machine, without those of
# security updates.
mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    grep '/debian/*$' | head -n 1
}

# make_root SUITE FOLDER: makes a root directory that has only what Debian calls required, and apt.
make_root() {
  local suite=$1 folder=$2
  mkdir -p "$roots_cache/packages/$suite" "$folder"
  debootstrap --variant=minbase --cache-dir="$roots_cache/packages/$suite" \
    "$suite" "$folder" "$(mirror)" >"$folder.log" 2>&1 || { tail -n 20 "$folder.log" >&2; return 1; }
  rm -f "$folder.log"
  # Names of hosts are resolved as on this machine.
  cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
}

# in_root FOLDER COMMAND...: runs a command with FOLDER as its root directory, in process and mount
# namespaces of its own: what it starts and mounts ends with it. Environment variables are not
# passed on, but for those of proxies. The variable SHARE is a list of FROM:TO: the folder FROM of
# this machine is mounted at the path TO of the root.
in_root() {
  local folder=$1
  shift
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --pid --fork --kill-child bash -euc '
    folder=$1 share=$2
    shift 2
    mount --make-rprivate /
    mount -t proc proc "$folder/proc"
    mount -t tmpfs -o mode=755 dev "$folder/dev"
    for name in null zero full random urandom tty; do
      touch "$folder/dev/$name"
      mount --bind "/dev/$name" "$folder/dev/$name"
    done
    mkdir "$folder/dev/shm" "$folder/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$folder/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$folder/dev/pts"
    ln -s pts/ptmx "$folder/dev/ptmx"
    ln -s /proc/self/fd "$folder/dev/fd"
    for shared in $share; do
      mkdir -p "${shared%%:*}" "$folder${shared#*:}"
      mount --bind "${shared%%:*}" "$folder${shared#*:}"
    done
    exec chroot "$folder" env -i PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root \
      LANG=C.UTF-8 ${http_proxy:+http_proxy="$http_proxy"} \
      ${https_proxy:+https_proxy="$https_proxy"} "$@"
  ' in_root "$folder" "${SHARE:-}" "$@"
}

# packages_of FOLDER: prints the part of SHARE that keeps the packages that apt downloads there.
packages_of() { echo "$roots_cache/packages/$(basename "$1"):/var/cache/apt/archives"; }

# install_in FOLDER PACKAGE...: installs packages in a root directory. A package may be a path in
# it.
install_in() {
  local folder=$1
  shift
  SHARE=$(packages_of "$folder") in_root "$folder" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "$@"' sh "$@" >"$folder.log" 2>&1 ||
    { tail -n 30 "$folder.log" >&2; return 1; }
  rm -f "$folder.log"
}

# expect TEXT FILE: fails unless a line of FILE has TEXT.
expect() {
  grep -qF -- "$1" "$2" && return
  echo "\"$1\" is missing in:" >&2
  cat "$2" >&2
  return 1
}
