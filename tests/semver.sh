#!/usr/bin/env bash
# Compares the API of cni-common with that of the last release. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1-} in
-h | --help)
    cat <<'END'
Usage: tests/semver.sh [COMMIT]

Fails if the version of cni-common promises more than its API keeps, compared with COMMIT or, by
default, with the newest tag "v*". Needs cargo-semver-checks, and no network once cargo has the crates.
Without a tag there is nothing to compare with, and without the program nothing to do it: it says so.
END
    exit
    ;;
esac
base=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
if [ -z "$base" ]; then
    echo "semver.sh: no release yet, so there is no API to keep"
    exit
fi
cargo semver-checks --version >/dev/null 2>&1 || {
    echo "semver.sh: REMARK skipped: the API of cni-common since $base: there is no cargo-semver-checks"
    exit
}
cargo semver-checks --package cni-common --baseline-rev "$base"
