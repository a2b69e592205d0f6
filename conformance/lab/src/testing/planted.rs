//! What may stand in the place of a file: objects that a tool must neither follow nor wait for.

use crate::Place;

/// Each kind, and the shell command that makes one at the path `$1`.
pub const PLANTED: [(&str, &str); 9] = [
    ("folder", r#"mkdir -p "$1/full""#),
    ("fifo", r#"mkfifo "$1""#),
    ("dangling", r#"ln -s nowhere "$1""#),
    ("zero", r#"ln -s /dev/zero "$1""#),
    ("device", r#"mknod "$1" c 1 5"#),
    ("sparse", r#"truncate -s 10G "$1""#),
    ("closed", r#"echo { >"$1"; chmod 0 "$1""#),
    ("strange", r#"echo { >"$1"; chown 1234 "$1""#),
    // In the place of a name's letters, bytes that are no UTF-8.
    ("bytes", r#"echo { >"$1""#),
];

/// Makes one object of each kind. In a path, `%` stands for the kind and `#` for its number.
#[track_caller]
pub fn plant_all(place: &impl Place, path: &str) {
    let script: String = PLANTED
        .iter()
        .enumerate()
        .map(|(number, (kind, make))| {
            let name = if *kind == "bytes" { "x\\377y" } else { kind };
            script(&path.replace('%', name).replace('#', &number.to_string()), make)
        })
        .collect();
    place.sh(&script).unwrap();
}

/// Makes one object, and removes the former one.
#[track_caller]
pub fn plant(place: &impl Place, path: &str, make: &str) {
    place.sh(&script(path, make)).unwrap();
}

fn script(path: &str, make: &str) -> String {
    format!(r#"set -e; set -- "$(printf '{path}')"; mkdir -p "$(dirname "$1")"; rm -rf "$1"; {make}"#) + "\n"
}
