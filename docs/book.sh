#!/usr/bin/env bash
# Makes a book of all pages that docs/SUMMARY.md lists, with mdbook. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<END
Usage: docs/book.sh FOLDER

Writes the book as HTML into FOLDER, which it replaces. Needs the program mdbook
("cargo install mdbook"). The pages stay where they are in the repository: a copy of
each goes into a folder beside the list of pages, so that their links to each other
hold. Links to other files of the repository become plain text.
END
}

case ${1-} in
-h | --help) usage; exit ;;
'') usage >&2; exit 2 ;;
esac
command -v mdbook >/dev/null || { echo "book.sh: there is no mdbook: cargo install mdbook" >&2; exit 1; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
book=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd "$root"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# The pages of the list, as paths from the root of the repository.
mapfile -t pages < <(sed -n 's/.*](\([^)]*\.md\))$/\1/p' docs/SUMMARY.md | sed 's,^,docs/,; s,^docs/\.\./,,')
for page in "${pages[@]}"; do
    mkdir -p "$work/src/$(dirname "$page")"
    # mdbook makes index.html of README.md, but changes no link to it. So the copy is named index.md.
    awk -v page="$page" -v list="${pages[*]}" '
        BEGIN {
            n = split(list, names, " ")
            for (i = 1; i <= n; i++) is_page[names[i]] = 1
            if (!sub(/\/[^\/]*$/, "", page)) page = ""
        }
        # The path from the root of the repository.
        function resolve(path,    parts, count, i, out, depth) {
            count = split(page "/" path, parts, "/")
            for (i = 1; i <= count; i++) {
                if (parts[i] == "..") depth--
                else if (parts[i] != "." && parts[i] != "") out[++depth] = parts[i]
            }
            path = out[1]
            for (i = 2; i <= depth; i++) path = path "/" out[i]
            return path
        }
        /^ *```/ { fence = !fence }
        fence { print; next }
        {
            rest = $0; line = ""
            while (match(rest, /\]\([^)]+\)/)) {
                link = substr(rest, RSTART + 2, RLENGTH - 3); line = line substr(rest, 1, RSTART - 1); rest = substr(rest, RSTART + RLENGTH)
                path = link; sub(/#.*/, "", path); anchor = substr(link, length(path) + 1)
                if (path == "" || path ~ /:/ || path ~ /\.svg$/) { line = line "](" link ")"; continue }
                if (resolve(path "/README.md") in is_page) path = path "/README.md"
                if (resolve(path) in is_page) {
                    sub(/README\.md$/, "index.md", path)
                    line = line "](" path anchor ")"
                } else {
                    match(line, /.*\[/)
                    line = substr(line, 1, RLENGTH - 1) substr(line, RLENGTH + 1)
                }
            }
            print line rest
        }' "$page" >"$work/src/${page/%README.md/index.md}"
done
cp docs/*.svg "$work/src/docs"
sed 's,](\([^)]*\.md\)),](docs/\1),; s,](docs/\.\./,](,; s,README\.md),index.md),' docs/SUMMARY.md >"$work/src/SUMMARY.md"
printf '[book]\ntitle = "Ferrule %s"\nlanguage = "en"\n[output.html]\nno-section-label = true\n[output.html.print]\nenable = false\n' "$version" >"$work/book.toml"
rm -rf -- "$book"
mdbook build --dest-dir "$book" "$work" >&2

# Each link of the book leads to a file of it.
dead=$(cd "$book" && grep -oH 'href="[^"#:]*\.html' -r --include '*.html' . | sed 's,:href=", ,' | sort -u |
    while read -r page link; do [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"; done)
[ -z "$dead" ] || { printf 'book.sh: dead link: %s\n' "$dead" >&2; exit 1; }
