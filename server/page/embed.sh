#!/bin/sh
# Prints the definition of PageFiles() (page_files.h) with the files that are named.
set -eu

echo '#include "server/page/page_files.h"'
echo
echo 'namespace syncgrads::server {'
echo
echo 'absl::Span<const PageFile> PageFiles() {'
echo '  static constexpr PageFile kFiles[] = {'
for file in "$@"; do
  printf '      {"%s", R"embedded(' "$(basename "$file")"
  cat "$file"
  echo ')embedded"},'
done
echo '  };'
echo '  return kFiles;'
echo '}'
echo
echo '}  // namespace syncgrads::server'
