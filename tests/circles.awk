# Reads FILE:LINE:TEXT of Rust code, without comments. Prints "MODULE MODULE" for each path that leads from one module to another of the
# same crate, for tsort. A module and those inside of it belong together: a path counts as one between the two folders or files, beside each
# other, that it leads from and to. A path in nested braces counts as its first part.
{
    match($0, /^[^:]*:[0-9]+:/)
    file = substr($0, 1, RLENGTH); sub(/:.*/, "", file)
    code[file] = code[file] " " substr($0, RLENGTH + 1)
    crate[file] = file; sub(/\/src\/.*/, "/src", crate[file])
    module[file] = file; sub(/(\/(mod|lib|main))?\.rs$/, "", module[file])
    known[module[file]] = 1
}

# path: module and item, with slashes. The longest part of it that is a module counts.
function edge(from, path,   a, b, i, above) {
    while (!(path in known) && sub(/\/[^\/]*$/, "", path)) { }
    if (!(path in known) || index(from "/", path "/") == 1 || index(path "/", from "/") == 1) return
    split(from, a, "/"); split(path, b, "/")
    for (i = 1; a[i] == b[i]; i++) above = above a[i] "/"
    print above a[i], above b[i]
}

# path: such as crate::a::b or super::a, without braces
function absolute(file, path,   up) {
    if (sub(/^crate/, crate[file], path)) { gsub(/::/, "/", path); return path }
    for (up = module[file]; sub(/^super(::)?/, "", path); ) sub(/\/[^\/]*$/, "", up)
    gsub(/::/, "/", path)
    return path == "" ? up : up "/" path
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
