#!/usr/bin/env bash
# Checks the files in .github by the schemas of GitHub, and that each script that a workflow calls exists.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The newest release when this was written: it brings the schemas with it.
version=0.39.0
tool=target/workflows-$version
if [ ! -x "$tool/bin/check-jsonschema" ]; then
    { python3 -m venv "$tool" && "$tool/bin/pip" install --quiet --disable-pip-version-check "check-jsonschema==$version"; } || {
        echo "workflows.sh: REMARK skipped: workflows: check-jsonschema cannot be installed"
        exit
    }
fi
check() { "$tool/bin/check-jsonschema" --quiet --builtin-schema "vendor.$1" "${@:2}"; }
check github-workflows .github/workflows/*.yml
check github-issue-config .github/ISSUE_TEMPLATE/config.yml
check github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check dependabot .github/dependabot.yml
check github-actions conformance/action.yml
missing=$(grep -ohE '(\./|tests/|release/|\.ci/)[a-z./-]*' .github/workflows/*.yml | sort -u | while read -r script; do [ -x "$script" ] || echo "$script"; done)
[ -z "$missing" ] || { echo "workflows.sh: no program: $missing"; exit 1; }
