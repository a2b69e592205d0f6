//! The command `cni-conformance`: judges a folder of CNI plugins.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use cni_conformance::catalog::{Entry, entries};
use cni_conformance::deviations::Deviations;
use cni_conformance::plugin_under_test::plugins_under_test;
use cni_conformance::report::{self, Counts};
use cni_conformance::run::{Ended, Plan, Profile};
use cni_runner::Version;

/// Judge CNI plugins, in any language, against the specification and against what their callers need.
///
/// The plugins run in network namespaces that the suite makes, which needs root; without root only a few test
/// cases run. Exit status: 0 if nothing failed, 1 if something failed, 2 if nothing could be judged.
#[derive(Parser)]
#[command(name = "cni-conformance", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the test cases on a folder of plugins and report
    Run(RunArgs),
    /// List the requirements and the number of their test cases
    List {
        /// Only requirements whose ID contains this; may be repeated
        #[arg(long, value_name = "TEXT")]
        filter: Vec<String>,
        /// Format of the list
        #[arg(long, value_enum, default_value_t = ListFormat::Human)]
        format: ListFormat,
    },
    /// Show one requirement with its source and test cases
    Explain {
        /// ID of the requirement, such as ENV-05
        id: String,
    },
}

#[derive(Args)]
struct RunArgs {
    /// The folder with the plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
    /// Only this plugin, or "list" for all of them together; may be repeated
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    /// Only this version of the specification; may be repeated
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    cni_version: Vec<Version>,
    /// Which requirements: the specification's, those of callers, or all
    #[arg(long, value_enum, default_value_t = ProfileArg::All)]
    profile: ProfileArg,
    /// Only test cases whose name, such as ENV-05/each-variable, contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// File of known failures, one per line: PLUGIN TEST-CASE VERSIONS REASON
    #[arg(long, value_name = "FILE")]
    known_deviations: Option<PathBuf>,
    /// JSON file that describes plugins unknown to the suite; see the README
    #[arg(long, value_name = "FILE")]
    describe: Option<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Human)]
    format: ReportFormat,
    /// How many test cases run at the same time; by default two per processor
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ProfileArg {
    Spec,
    Interop,
    All,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReportFormat {
    Human,
    Html,
    Json,
    Junit,
    Markdown,
}

#[derive(Clone, Copy, ValueEnum)]
enum ListFormat {
    Human,
    Markdown,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(args),
        Command::List { filter, format } => list(&filter, format),
        Command::Explain { id } => explain(&id),
    };
    result.unwrap_or_else(|error| {
        eprintln!("cni-conformance: {error:#}");
        ExitCode::from(2)
    })
}

fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let is_root = nix::unistd::geteuid().is_root();
    let plan = Plan {
        plugins: plugins_under_test(&args.bin_dir, &args.plugin, args.describe.as_deref(), is_root)?,
        versions: args.cni_version,
        profile: match args.profile {
            ProfileArg::Spec => Profile::Spec,
            ProfileArg::Interop => Profile::Interop,
            ProfileArg::All => Profile::All,
        },
        filters: args.filter,
        jobs: args.jobs.unwrap_or_else(|| 2 * std::thread::available_parallelism().map_or(1, usize::from)),
        is_root,
        known: args.known_deviations.as_deref().map(Deviations::read).transpose()?.unwrap_or_default(),
    };
    let total = plan.test_runs().len();
    if total == 0 {
        bail!("nothing to try: no test case matches these plugins, versions and filters");
    }
    let ended = plan.run(Progress::new(total));
    let unmet = if plan.filters.is_empty() && args.plugin.is_empty() {
        plan.known.unmet(&plan.versions)
    } else {
        Vec::new()
    };
    let format = match args.format {
        ReportFormat::Human => report::Format::Human,
        ReportFormat::Html => report::Format::Html,
        ReportFormat::Json => report::Format::Json,
        ReportFormat::Junit => report::Format::Junit,
        ReportFormat::Markdown => report::Format::Markdown,
    };
    print(&report::report(format, &ended, &unmet))?;
    Ok(if Counts::of(&ended).fail == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A progress line on standard error, if that is a terminal.
struct Progress;

impl Progress {
    #[allow(clippy::new_ret_no_self, reason = "it returns a closure")]
    fn new(total: usize) -> impl Fn(usize, &Ended<'_>) + Sync {
        let is_terminal = std::io::stderr().is_terminal();
        let line = Mutex::new(());
        move |before, ended| {
            if !is_terminal {
                return;
            }
            let _line = line.lock();
            let run = ended.run;
            eprint!(
                "\r\x1b[K{}/{total} {} {} {}",
                before + 1,
                run.plugin.name,
                run.test_case.id(),
                run.version
            );
            if before + 1 == total {
                eprint!("\r\x1b[K");
            }
        }
    }
}

fn list(filters: &[String], format: ListFormat) -> anyhow::Result<ExitCode> {
    if matches!(format, ListFormat::Markdown) {
        print(&report::document())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    let is_chosen = |entry: &Entry| {
        filters.is_empty() || filters.iter().any(|part| entry.requirement.id.contains(part.as_str()))
    };
    for entry in entries().filter(is_chosen) {
        let row = entry.requirement;
        let cases = entry.test_cases().count();
        text += &format!("{:<8} {:<10} {:<15} {cases:>2}  {}\n", row.id, row.level, row.versions, row.says);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn explain(id: &str) -> anyhow::Result<ExitCode> {
    let wanted = id.split('/').next().unwrap_or(id);
    let entry = entries()
        .find(|entry| entry.requirement.id.eq_ignore_ascii_case(wanted))
        .with_context(|| format!("no requirement has the ID {id}; see cni-conformance list"))?;
    let row = entry.requirement;
    let mut text = format!(
        "{} ({})\n\n{}\n\nlevel     {}\nversions  {}\nsource    {}\n",
        row.id, entry.section.title, row.says, row.level, row.versions, row.source
    );
    match row.unproven {
        Some(why) => text += &format!("tests     none: {why}\n"),
        None => {
            for test_case in entry.test_cases() {
                let roles: Vec<String> =
                    test_case.roles.iter().map(|role| format!("{role:?}").to_lowercase()).collect();
                let of = if test_case.only.is_empty() { roles.join(", ") } else { test_case.only.join(", ") };
                text += &format!("test      {} (plugins: {of})\n", test_case.id());
            }
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a text; a reader that has closed the pipe is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("write to standard output")
        }
        _ => Ok(()),
    }
}

fn parse_version(text: &str) -> Result<Version, String> {
    Version::parse(text).filter(|version| Version::PUBLISHED.contains(version)).ok_or_else(|| {
        format!(
            "not a published version of the specification; these are {}",
            Version::PUBLISHED.map(|v| v.to_string()).join(", ")
        )
    })
}
