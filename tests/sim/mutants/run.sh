#!/bin/bash
# Plants each bug of this folder, one at a time, in a copy of the tree, and simulates
# until it is found.
#
#   run.sh [--schedules=N] [NAME...]
#   run.sh --check                     only whether all patches apply
#
# Ends with "N mutants, M not found", and with 1 unless all were. A patch that does
# not apply to the tree is an error: it is mended together with what it patches.

set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
tree=$(readlink -f "$here/../../..")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/syncgrads
copy=$cache/mutants

schedules=10000
names=()
only_check=
for argument in "$@"; do
  case $argument in
    --schedules=*) schedules=${argument#*=} ;;
    --check) only_check=1 ;;
    -*) echo "run.sh: no such option: $argument" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done
if [ ${#names[@]} -eq 0 ]; then
  for patch in "$here"/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for name in "${names[@]}"; do
  patch --quiet --forward --fuzz=0 --dry-run -d "$tree" -p1 <"$here/$name.patch" >"$log" &&
    continue
  echo "$name: the patch does not apply:" >&2
  cat "$log" >&2
  exit 1
done
if [ -n "$only_check" ]; then
  echo "${#names[@]} mutants apply"
  exit
fi

# What is the same stays as it is, so that only what a mutant changes is built again.
mkdir -p "$copy"
cd "$tree"
git ls-files -z --cached --others --exclude-standard |
  while IFS= read -r -d '' file; do
    if [ -e "$file" ] && ! cmp -s "$file" "$copy/$file"; then
      cp --parents -p "$file" "$copy"
    fi
  done

cd "$copy"
applied=
finish() {
  if [ -n "$applied" ]; then patch --quiet --reverse -p1 <"$applied"; fi
  rm -f "$log"
  bazel shutdown
}
trap finish EXIT

missed=0
for name in "${names[@]}"; do
  patch=$here/$name.patch
  patch --quiet --forward --fuzz=0 --no-backup-if-mismatch -p1 <"$patch"
  applied=$patch
  if ! bazel build --disk_cache="$cache/bazel" ${MUTANTS_BAZEL_ARGS:-} //tests/sim:simulate \
    >"$log" 2>&1; then
    echo "$name: the mutant does not build:" >&2
    cat "$log" >&2
    exit 1
  fi
  if bazel-bin/tests/sim/simulate --schedules="$schedules" --jobs="$(nproc)" --most_failures=1 \
    >"$log"; then
    echo "$name: NOT FOUND in $schedules schedules"
    missed=$((missed + 1))
  else
    echo "$name: found: $(grep -m 1 '^seed [0-9]* failed\|^process' "$log")"
  fi
  patch --quiet --reverse -p1 <"$patch"
  applied=
done
echo "${#names[@]} mutants, $missed not found"
[ "$missed" -eq 0 ]
