//! Compares Ferrule's plugins with the Go reference on one node, in alternating calls: wall time, CPU time
//! and memory of every verb.
//!
//! Run it as root with `cargo bench -p ferrule-e2e`; options go behind `--`. Times are only reported: the
//! exit status shows whether a plugin failed, not whether it was slow.

mod cases;
mod chain;
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
    fn sides(&self) -> anyhow::Result<[Side; 2]> {
        let given =
            |dir: &PathBuf| dir.canonicalize().with_context(|| format!("find the folder {}", dir.display()));
        let ours = self.bin_dir.as_ref().map_or_else(bin_dir, given)?;
        let reference = self.reference_dir.as_ref().map_or_else(go_bin_dir, given)?;
        Ok([Side::new("ours", 1, ours), Side::new("them", 2, reference)])
    }
}

/// Runs the cases one after the other; returns `false` if one failed.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    let sides = cli.sides()?;
    let runner = Runner { sides: &sides, iterations: cli.iterations };
    let mut report = Report::default();
    for case in cases::all(&sides).into_iter().filter(|case| case.name.contains(&cli.filter)) {
        if let Some(missing) = case.missing(&sides) {
            report.note(format!("left out: {}: no {}", case.name, missing.display()));
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
