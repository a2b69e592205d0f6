//! Finds the iptables programs, determines their variant and runs them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// How long `iptables-restore` waits for the xtables lock, in seconds. Without a limit, one process that
/// hangs would block all pods of the node.
const WAIT: &str = "5";

/// The variant of `iptables`: where it stores its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// iptables-nft: in nf_tables.
    Nft,
    /// iptables-legacy: in its own kernel tables.
    Legacy,
}

/// The `-save` and `-restore` programs of one family and variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The variant of the programs.
    pub variant: Variant,
    /// The program names without `-save` and `-restore`, such as `ip6tables-legacy`.
    stem: String,
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin:/sbin:/bin"));
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn name(v6: bool) -> &'static str {
    if v6 { "ip6tables" } else { "iptables" }
}

/// The variant of the program at the path. Looks at the file name after all symbolic links; starts the
/// program with `-V` only if the name contains neither `nft` nor `legacy`.
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
    // Versions before 1.8 have only the legacy variant and print no variant.
    Ok(if is_nft { Variant::Nft } else { Variant::Legacy })
}

impl Programs {
    /// The programs that the node uses: `iptables-restore` or `ip6tables-restore` on the `PATH`.
    ///
    /// # Errors
    /// The program is not on the `PATH`, or its variant cannot be determined.
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

    /// The legacy programs. `None` if the network namespace has no legacy nat table of the family, or if the
    /// programs are not on the `PATH`: then no plugin with the same `PATH` can have added rules with them.
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

    /// Runs the `-save` program and returns its output for the nat table.
    ///
    /// # Errors
    /// The program cannot be started, or its exit status and stderr.
    pub fn save(&self) -> io::Result<String> {
        let program = format!("{}-save", self.stem);
        let output = Command::new(&program).args(["-t", "nat"]).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failure(&program, &output))
    }

    /// Applies these lines to the nat table with the `-restore` program: all of them or none.
    ///
    /// # Errors
    /// The program cannot be started, or its exit status and stderr.
    pub fn restore(&self, lines: &[String]) -> io::Result<()> {
        let program = format!("{}-restore", self.stem);
        let mut command = Command::new(&program);
        command.arg("--noflush");
        if self.variant == Variant::Legacy {
            // iptables-nft has no lock and would only print a warning.
            command.args(["-w", WAIT]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let input = format!("*nat\n{}\nCOMMIT\n", lines.join("\n"));
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        // If the program exits early, its stderr explains more than EPIPE in `written`.
        if output.status.success() { written } else { Err(failure(&program, &output)) }
    }
}

fn failure(program: &str, output: &Output) -> io::Error {
    let stderr = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!("{program}: {}: {}", output.status, stderr.trim()))
}
