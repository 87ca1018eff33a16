# shellcheck shell=bash
# Functions that make archives with programs. `stage` is a temporary folder.

# pack FOLDER: makes dist/FOLDER.tar.xz of a folder in $stage. The same content gives the same file.
pack() {
  tar --create --directory="$stage" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime=@0 --file=- "$1" | xz >"dist/$1.tar.xz"
  echo "dist/$1.tar.xz"
}

# libraries PROGRAM...: prints the paths of all shared libraries that programs load, but for those
# of the C library. These belong to the kernel and to the system's configuration.
libraries() {
  ldd "$@" | sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|nss_.*|mvec|BrokenLocale|thread_db))\.so\.[0-9]+$'
}

# add_libraries FOLDER: copies the libraries that the programs in FOLDER/bin load to FOLDER/lib,
# where the programs find them by their own place, and the licences to FOLDER/share/doc.
add_libraries() {
  local bundle=$1 needed paths owners library owner
  mkdir -p "$bundle/lib" "$bundle/share/doc"
  mapfile -t needed < <(libraries "$bundle/bin/"*)
  for library in "${needed[@]}"; do
    install -m 644 "$library" "$bundle/lib/$(basename "$library")"
  done
  # The licences of the libraries in the archive.
  mapfile -t paths < <(realpath "${needed[@]}")
  # A package may list its file as /lib/... or as /usr/lib/..., which are the same file.
  mapfile -t owners < <(
    { dpkg -S "${paths[@]}" "${paths[@]#/usr}" 2>/dev/null || true; } | cut -d: -f 1 | sort -u)
  for owner in "${owners[@]}"; do
    cp -L "/usr/share/doc/$owner/copyright" "$bundle/share/doc/$owner.copyright"
  done
  patchelf --set-rpath '$ORIGIN/../lib' "$bundle/bin/"*
  patchelf --set-rpath '$ORIGIN' "$bundle/lib/"*
}
