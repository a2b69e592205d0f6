//! Runs our host-local or the reference's as a runtime does, with stores in temporary directories.
#![allow(dead_code, unreachable_pub, reason = "shared by the test files; each uses only a part")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cni_lab::go_bin_dir;
use cni_lab::testing::{overlay, with_prev};
use cni_runner::{Attachment, Exec, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const OURS: &str = env!("CARGO_BIN_EXE_host-local");

/// The reference's program.
pub fn go() -> &'static str {
    static PROGRAM: LazyLock<String> =
        LazyLock::new(|| go_bin_dir().unwrap().join("host-local").display().to_string());
    &PROGRAM
}

/// A network with its store in a temporary directory.
pub struct Net {
    dir: TempDir,
    pub conf: Value,
}

impl Net {
    /// A network with the range sets `ranges`, in the configuration's JSON.
    pub fn new(ranges: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let conf = json!({
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "bridge",
            "ipam": { "type": "host-local", "ranges": ranges, "dataDir": dir.path().join("data") },
        });
        Net { dir, conf }
    }

    /// A network with one range set of one subnet.
    pub fn of(subnet: &str) -> Self {
        Net::new(json!([[{ "subnet": subnet }]]))
    }

    /// The network with a changed configuration.
    pub fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.conf);
        self
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn store(&self) -> PathBuf {
        self.root().join("data/net")
    }

    /// A call with only the variables of CNI.
    pub fn exec(&self, program: &str, verb: &str, id: &str, ifname: &str) -> Exec {
        let attachment = Attachment::new(id, "/some/where", ifname);
        let mut exec = Exec::new(program, verb).attachment(&attachment).path("/some/path");
        exec.inherit = false;
        exec.stdin(self.conf.to_string())
    }

    pub fn add(&self, id: &str) -> Output {
        self.run("ADD", id)
    }

    pub fn del(&self, id: &str) -> Output {
        self.run("DEL", id)
    }

    pub fn run(&self, verb: &str, id: &str) -> Output {
        self.exec(OURS, verb, id, "eth0").run().unwrap()
    }

    /// Calls CHECK with a prevResult of these addresses.
    pub fn check(&self, program: &str, id: &str, ips: &[String]) -> Output {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "address": format!("{ip}/24") })).collect();
        let conf = with_prev(&self.conf, &json!({ "cniVersion": "1.0.0", "ips": ips }));
        run(self.exec(program, "CHECK", id, "eth0"), &conf)
    }

    /// Calls GC with these valid attachments.
    pub fn gc(&self, valid: Value) -> Output {
        let keys = json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid });
        let conf = overlay(&self.conf, &keys);
        run(self.exec(OURS, "GC", "", ""), &conf)
    }

    /// Writes a file into the store.
    pub fn seed(&self, name: &str, content: &str) {
        fs::create_dir_all(self.store()).unwrap();
        fs::write(self.store().join(name), content).unwrap();
    }

    /// Names and contents of all files in the store.
    pub fn files(&self) -> BTreeMap<String, String> {
        let Ok(entries) = fs::read_dir(self.store()) else { return BTreeMap::new() };
        entries
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let content = fs::read(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), String::from_utf8(content).unwrap())
            })
            .collect()
    }

    /// The files except the lock and the last reserved addresses.
    pub fn reservations(&self) -> BTreeMap<String, String> {
        let mut files = self.files();
        files.retain(|name, _| name != "lock" && !name.starts_with("last_reserved_ip."));
        files
    }
}

/// Makes a call with another configuration.
pub fn run(exec: Exec, conf: &Value) -> Output {
    exec.stdin(conf.to_string()).run().unwrap()
}

/// All files below `dir`: path, mode, and content or link target.
pub fn listing(dir: &Path) -> BTreeMap<PathBuf, (u32, String)> {
    let mut list = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
            } else {
                String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
            };
            list.insert(path, (meta.permissions().mode(), content));
        }
    }
    list
}

/// Makes a file look as if the reference had written it in 2001, before any boot.
pub fn age(path: &Path) {
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
}
