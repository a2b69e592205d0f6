//! The programs, which of the two kinds they are, and running them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// How long a program waits for others that hold the lock, in seconds. Without a limit a stuck one stops a node's pods.
const WAIT: &str = "5";

/// Where `iptables` keeps its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// In nf_tables, where we read them ourselves.
    Nft,
    /// In tables of its own.
    Legacy,
}

/// The programs of one family and variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Its variant.
    pub variant: Variant,
    /// What `-save` and `-restore` are put behind.
    stem: String,
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin:/sbin:/bin"));
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn name(v6: bool) -> &'static str {
    if v6 { "ip6tables" } else { "iptables" }
}

/// The variant of the program at the path: by the name of the file that it leads to in the end, and only where that says
/// nothing by asking the program, which costs a process.
fn variant(program: &PathBuf) -> io::Result<Variant> {
    let file = fs::canonicalize(program)?;
    let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if file.contains("nft") {
        return Ok(Variant::Nft);
    }
    if file.contains("legacy") {
        return Ok(Variant::Legacy);
    }
    let output = Command::new(program).arg("-V").stdin(Stdio::null()).output()?;
    let is_nft = String::from_utf8_lossy(&output.stdout).contains("nf_tables");
    // Before version 1.8 there was but one, which is what now is called legacy.
    Ok(if is_nft { Variant::Nft } else { Variant::Legacy })
}

impl Programs {
    /// Those that the node uses: what `iptables` on the `PATH` is.
    ///
    /// # Errors
    /// There is none, or it cannot be told what it is.
    pub fn of_node(v6: bool) -> io::Result<Self> {
        let name = name(v6);
        let program = find(&format!("{name}-restore")).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{name}-restore is not on the PATH"))
        })?;
        Ok(Programs { variant: variant(&program)?, stem: name.to_owned() })
    }

    /// Whether the network namespace has a legacy nat table of the family.
    pub fn has_legacy_table(v6: bool) -> bool {
        let names = if v6 { "ip6_tables_names" } else { "ip_tables_names" };
        let names = fs::read_to_string(format!("/proc/thread-self/net/{names}")).unwrap_or_default();
        names.lines().any(|name| name == "nat")
    }

    /// The legacy ones, if the network namespace has a legacy nat table of the family, and the programs are there. If they
    /// are not, nobody on the same `PATH` can have used them.
    pub fn legacy(v6: bool) -> Option<Self> {
        if !Programs::has_legacy_table(v6) {
            return None;
        }
        let legacy = format!("{}-legacy", name(v6));
        if find(&format!("{legacy}-restore")).is_some() {
            return Some(Programs { variant: Variant::Legacy, stem: legacy });
        }
        Programs::of_node(v6).ok().filter(|programs| programs.variant == Variant::Legacy)
    }

    /// The nat table, as the program prints it.
    ///
    /// # Errors
    /// What the program said.
    pub fn save(&self) -> io::Result<String> {
        let program = format!("{}-save", self.stem);
        let output = Command::new(&program).args(["-t", "nat"]).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failure(&program, &output))
    }

    /// Has these lines carried out on the nat table, as a whole or not at all.
    ///
    /// # Errors
    /// What the program said.
    pub fn restore(&self, lines: &[String]) -> io::Result<()> {
        let program = format!("{}-restore", self.stem);
        let mut command = Command::new(&program);
        command.arg("--noflush");
        if self.variant == Variant::Legacy {
            // The other has no lock and would only warn.
            command.args(["-w", WAIT]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let input = format!("*nat\n{}\nCOMMIT\n", lines.join("\n"));
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        // A program that ends early says why, which is more than a broken pipe does.
        if output.status.success() { written } else { Err(failure(&program, &output)) }
    }
}

fn failure(program: &str, output: &Output) -> io::Error {
    let words = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!("{program}: {}: {}", output.status, words.trim()))
}
