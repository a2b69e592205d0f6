# Reads FILE:LINE:TEXT of Rust code, without comments. Prints "MODULE MODULE" for each path that leads from one module to another of the
# same crate, for tsort. Left out are paths between a module and those inside of it, which belong together. A path in nested braces counts
# as its first part.
{
    match($0, /^[^:]*:[0-9]+:/)
    file = substr($0, 1, RLENGTH); sub(/:.*/, "", file)
    code[file] = code[file] " " substr($0, RLENGTH + 1)
    crate[file] = file; sub(/\/src\/.*/, "/src", crate[file])
    module[file] = file; sub(/(\/(mod|lib|main))?\.rs$/, "", module[file])
    known[module[file]] = 1
}

# path: module and item, with slashes. The longest part of it that is a module counts.
function edge(from, path) {
    while (!(path in known) && sub(/\/[^\/]*$/, "", path)) { }
    if (path in known && index(from "/", path "/") != 1 && index(path "/", from "/") != 1) print from, path
}

# path: such as crate::a::b or super::a, without braces
function absolute(file, path,   up) {
    if (sub(/^crate/, crate[file], path)) { gsub(/::/, "/", path); return path }
    for (up = module[file]; sub(/^super(::)?/, "", path); ) sub(/\/[^\/]*$/, "", up)
    gsub(/::/, "/", path)
    return up "/" path
}

function follow(file, text,   start, items, count) {
    if (!(start = index(text, "::{"))) { edge(module[file], absolute(file, text)); return }
    items = substr(text, start + 3)
    text = absolute(file, substr(text, 1, start - 1))
    gsub(/::[{][^}]*[}]/, "", items)
    gsub(/[ \t};]/, "", items)
    gsub(/::/, "/", items)
    for (count = split(items, item, /,/); count > 0; count--) edge(module[file], text "/" item[count])
}

END {
    for (file in code) {
        while (match(code[file], /(crate|super)(::[A-Za-z0-9_]+)*(::[{][^;]*;)?/)) {
            path = substr(code[file], RSTART, RLENGTH)
            code[file] = substr(code[file], RSTART + RLENGTH)
            follow(file, path)
        }
    }
}
