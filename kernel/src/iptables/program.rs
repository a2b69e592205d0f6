//! Finds the iptables programs, determines their variant and runs them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::{Listing, NAT};
use crate::ip::IpFamily;
use crate::observer;
use crate::retry::{Limit, retry};

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
    /// The table that they read and change.
    table: &'static str,
    /// The program names without `-save` and `-restore`, such as `ip6tables-legacy`.
    stem: String,
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin:/sbin:/bin"));
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

const fn name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

/// The variant of the program at the path. The file name after all symbolic links shows it; starts the
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
    pub fn of_node(family: IpFamily) -> io::Result<Self> {
        let name = name(family);
        let program = find(&format!("{name}-restore")).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{name}-restore is not on the PATH"))
        })?;
        Ok(Programs { variant: variant(&program)?, table: NAT, stem: name.to_owned() })
    }

    /// The same programs for another table than nat.
    #[must_use]
    pub fn in_table(self, table: &'static str) -> Self {
        Programs { table, ..self }
    }

    /// Whether the network namespace has this legacy table of the family.
    pub fn has_legacy(family: IpFamily, table: &str) -> bool {
        let names = match family {
            IpFamily::V4 => "ip_tables_names",
            IpFamily::V6 => "ip6_tables_names",
        };
        let names = fs::read_to_string(format!("/proc/thread-self/net/{names}")).unwrap_or_default();
        names.lines().any(|name| name == table)
    }

    /// The legacy programs for this table. `None` if the network namespace has no such legacy table of the family, or if the
    /// programs are not on the `PATH`: then no plugin with the same `PATH` can have added rules with them.
    pub fn legacy(family: IpFamily, table: &'static str) -> Option<Self> {
        if !Programs::has_legacy(family, table) {
            return None;
        }
        let legacy = format!("{}-legacy", name(family));
        if find(&format!("{legacy}-restore")).is_some() {
            return Some(Programs { variant: Variant::Legacy, table, stem: legacy });
        }
        let own = Programs::of_node(family).ok().filter(|programs| programs.variant == Variant::Legacy);
        own.map(|programs| programs.in_table(table))
    }

    /// Runs the `-save` program and parses its output.
    ///
    /// # Errors
    /// As [`Programs::save`].
    pub fn list(&self) -> io::Result<Listing> {
        Ok(Listing::of(self.table, &self.save()?))
    }

    /// Runs the `-save` program and returns its output for the table.
    ///
    /// # Errors
    /// The program cannot be started, or its exit status and stderr.
    pub fn save(&self) -> io::Result<String> {
        let program = format!("{}-save", self.stem);
        let run = || Command::new(&program).args(["-t", self.table]).stdin(Stdio::null()).output();
        let output = observer::step(&program, run)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(failure(&program, &output))
    }

    /// Applies these lines to the table with the `-restore` program: all of them or none.
    ///
    /// # Errors
    /// The program cannot be started, or its exit status and stderr. [`is_conflict`] says whether another
    /// attempt may succeed. A wait for the xtables lock that ends after 5 s is final.
    pub fn restore(&self, lines: &[String]) -> io::Result<()> {
        let program = format!("{}-restore", self.stem);
        let mut command = Command::new(&program);
        command.arg("--noflush");
        if self.variant == Variant::Legacy {
            // iptables-nft has no lock and would only print a warning.
            command.args(["-w", WAIT]);
        }
        let run = || {
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
            let input = format!("*{}\n{}\nCOMMIT\n", self.table, lines.join("\n"));
            let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
            child.wait_with_output().map(|output| (output, written))
        };
        let (output, written) = observer::step(&program, run)?;
        // If the program exits early, its stderr explains more than EPIPE in `written`.
        if output.status.success() { written } else { Err(failure(&program, &output)) }
    }
}

impl Programs {
    /// Applies the lines that `lines` derives from a listing of the table; none if that returns none. Repeats both if another
    /// process has changed the table in between.
    ///
    /// # Errors
    /// As [`Programs::restore`], or as many concurrent changes as `limit` says.
    pub fn change(&self, limit: Limit, lines: impl Fn(&Listing) -> Vec<String>) -> io::Result<()> {
        retry(limit, is_conflict, || {
            let lines = lines(&self.list()?);
            if lines.is_empty() { Ok(()) } else { self.restore(&lines) }
        })
    }
}

/// Whether an error of [`Programs::restore`] means that a line did not fit the current rules: it deletes a
/// rule that does not exist, jumps to a chain that does not exist, or makes a chain that exists. If the lines fitted the rules of
/// [`Programs::save`], another process has changed the table in between.
pub fn is_conflict(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

fn failure(program: &str, output: &Output) -> io::Error {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let conflicts = does_not_fit(output.status.code(), &stderr);
    let kind = if conflicts { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    io::Error::new(kind, format!("{program}: {}: {}", output.status, stderr.trim()))
}

/// Whether exit code and stderr say that a line did not fit the current rules. Syntax errors have exit code 2, too.
/// Exit code 4 means a time-out of the xtables lock, or an error of the kernel for iptables-nft.
fn does_not_fit(code: Option<i32>, stderr: &str) -> bool {
    /// The texts of ENOENT, EEXIST and EBUSY. musl has the last one for EBUSY.
    const ERRORS: [&str; 4] =
        ["(No such file or directory)", "(File exists)", "(Device or resource busy)", "(Resource busy)"];
    match code {
        Some(1) => stderr.contains("line ") && stderr.contains(" failed"),
        // The target of a rule is a chain that does not exist, in the words of the two variants.
        Some(2) => stderr.contains("Couldn't load target") || stderr.contains("' does not exist"),
        Some(4) => ERRORS.iter().any(|text| stderr.contains(text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The texts are those of iptables 1.8.9.
    #[test]
    fn a_conflict_is_told_from_a_final_error() {
        let bad_rule =
            "iptables-nft-restore: line 2 failed: Bad rule (does a matching rule exist in that chain?).";
        let jumped_to = "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: CHAIN_DEL failed (Device or resource busy): chain B";
        let no_target =
            "iptables-restore v1.8.9 (legacy): Couldn't load target `A':No such file or directory";
        let no_chain = "iptables-nft-restore v1.8.9 (nf_tables): Chain 'A' does not exist";
        for (code, stderr) in [
            (1, "iptables-restore: line 2 failed"),
            (1, bad_rule),
            (2, no_target),
            (2, no_chain),
            (4, jumped_to),
        ] {
            assert!(does_not_fit(Some(code), stderr), "{stderr}");
        }
        let no_table = "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'";
        let syntax =
            "iptables-restore v1.8.9 (legacy): unknown option \"--nonsense\"\nError occurred at line: 2";
        let locked = "Can't lock /run/xtables.lock: Resource temporarily unavailable\n\
                      Another app is currently holding the xtables lock. Stopped waiting after 5s.";
        let refused = "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed (Invalid argument): rule in chain A";
        for (code, stderr) in [(1, no_table), (2, syntax), (4, locked), (4, refused)] {
            assert!(!does_not_fit(Some(code), stderr), "{stderr}");
        }
        assert!(!does_not_fit(None, "line 2 failed"));
    }
}
