#!/usr/bin/env bash
# Hold what was recorded of a change against what was recorded before it.
#   docs/ci/diff.sh BASE HEAD OUT      GATES=docs/ci/gates.toml NOISE=
# BASE and HEAD (and NOISE, A/A runs, where one run a side must do) hold a folder of recorded files, or a run, a
# round: BASE/1 BASE/2 ... Left in OUT: runs/, kvtrace.xml (JUnit), summary.md. Exit code: that of kvtrace diff,
# 0 pass, 1 regression, 2 bad usage or input, 3 not comparable, 4 inconclusive.
set -euo pipefail
base=$1 head=$2 out=$3
gates=${GATES:-$(dirname "$0")/gates.toml}

imported() { # SIDE FOLDER: a run of each round
    mkdir -p "$out/runs/$1"
    for round in "$2"/*/; do
        kvtrace import "$round" --out "$out/runs/$1/$(basename "$round")" > /dev/null || return 2
    done
}
rm -f "$out/kvtrace.xml" "$out/summary.md" # of an earlier verdict
imported base "$base"
imported head "$head"
asked=("$out"/runs/base/* --vs "$out"/runs/head/* --gate "$gates")
if [ -n "${NOISE:-}" ]; then
    imported noise "$NOISE"
    asked+=(--noise "$out"/runs/noise/*)
fi

code=0
kvtrace diff "${asked[@]}" --format junit > "$out/kvtrace.xml" || code=$?
case "$code" in 2 | 3) exit "$code" ;; esac # said on stderr; there is nothing to show
kvtrace diff "${asked[@]}" --format markdown > "$out/summary.md" || true
cat "$out/summary.md"
exit "$code"
