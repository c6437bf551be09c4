#!/usr/bin/env bash
# Which commit made it worse?     git bisect start BAD GOOD && git bisect run /elsewhere/bisect.sh BASE MEASURE
# BASE holds recorded rounds of the good commit; MEASURE is a command that records the commit that is checked out
# into the folder that it is given, a folder a round. Copy this script and diff.sh out of the tree that is bisected.
set -uo pipefail
base=$1 measure=$2
command -v -- "$measure" > /dev/null || { echo "$measure: is no command" >&2; exit 255; } # or all commits are skipped
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$measure" "$scratch/head" || exit 125 # does not build or start: skip this commit
code=0
"$(dirname "$0")/diff.sh" "$base" "$scratch/head" "$scratch/out" || code=$?
case "$code" in
    0 | 1) exit "$code" ;; # good, bad
    3 | 4) exit 125 ;;     # not comparable, or nobody can say: skip this commit
    *) exit 255 ;;         # bad usage or input: stop, do not blame a commit
esac
