//! Compares Ferrule's plugins with the Go reference on one node, in alternating calls: wall time, CPU time,
//! memory and page faults of every verb. Beside them, if wanted, an older build of Ferrule's plugins.
//!
//! std starts the plugins by posix_spawn. A program that does nothing is started in the same turns as VERSION.
//!
//! Run it as root with `cargo bench -p ferrule-e2e`; options go behind `--`. Times are only reported: the
//! exit status shows whether a plugin failed, not whether it was slow.

mod cases;
mod chain;
mod empty;
mod folder;
mod kernel;
mod memory;
mod process;
mod report;
mod runner;
mod side;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use cni_lab::{bin_dir, go_bin_dir};

use empty::Empty;
use report::Report;
use runner::Runner;
use side::Side;

/// Compare two folders of CNI plugins, verb by verb.
#[derive(Parser)]
#[command(name = "cargo bench -p ferrule-e2e --")]
struct Cli {
    /// Folder with Ferrule's plugins [default: $FERRULE_BIN_DIR, else the output of ./build.sh]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Folder with the plugins to compare with [default: $FERRULE_GO_BIN_DIR, else /usr/lib/cni]
    #[arg(long, value_name = "DIR")]
    reference_dir: Option<PathBuf>,
    /// Folder with an older build of Ferrule's plugins, to measure what a change has brought
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Measured calls of each verb, on each side
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Only cases whose names contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Set by cargo bench, not by cargo test
    #[arg(long, hide = true)]
    bench: bool,
}

impl Cli {
    /// Ours, the reference, and the baseline if there is one.
    fn sides(&self) -> anyhow::Result<Vec<Side>> {
        let given =
            |dir: &PathBuf| dir.canonicalize().with_context(|| format!("find the folder {}", dir.display()));
        let ours = self.bin_dir.as_ref().map_or_else(bin_dir, given)?;
        let reference = self.reference_dir.as_ref().map_or_else(go_bin_dir, given)?;
        let mut sides = vec![Side::new("ours", 1, true, ours), Side::new("them", 2, false, reference)];
        if let Some(baseline) = &self.baseline {
            sides.push(Side::new("then", 3, true, given(baseline)?));
        }
        Ok(sides)
    }
}

/// Runs the cases one after the other; returns `false` if one failed.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    let sides = cli.sides()?;
    let mut report = Report::default();
    let empty = Empty::compile();
    if let Err(error) = &empty {
        report.note(format!("left out: the empty program: {error:#}"));
    }
    let runner = Runner { sides: &sides, empty: empty.as_ref().ok(), iterations: cli.iterations };
    for case in cases::all(&sides).into_iter().filter(|case| case.name.contains(&cli.filter)) {
        if let Some(missing) = case.missing(&sides)? {
            report.note(format!("left out: {}: {missing}", case.name));
            continue;
        }
        eprintln!("{} ...", case.name);
        match runner.run(&case) {
            Ok(outcome) => report.add(outcome),
            Err(error) => report.failure(format!("FAILED: {}: {error:#}", case.name)),
        }
    }
    print!("{}", report.render(&sides, cli.iterations, cli.markdown));
    Ok(!report.has_failures())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !cli.bench {
        // `cargo test --all-targets` runs benchmarks too, where minutes of measuring are not wanted.
        println!("nothing measured: use cargo bench");
        return ExitCode::SUCCESS;
    }
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
