//! Compares Ferrule's plugins with the Go reference on one node, in alternating calls: wall time, CPU time,
//! memory and page faults of every verb. Beside them, if wanted, an older build of Ferrule's plugins.
//!
//! std starts the plugins by posix_spawn. A program that does nothing is started in the same turns as VERSION.
//!
//! Run it as root with `cargo bench -p ferrule-e2e -- CHAPTER`. Times are only reported: the
//! exit status shows whether a plugin failed, not whether it was slow.

mod burst;
mod cases;
mod chain;
mod connection;
mod daemons;
mod empty;
mod floor;
mod folder;
mod kernel;
mod memory;
mod operators;
mod picture;
mod process;
mod report;
mod runner;
mod side;
mod stats;
mod status;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, iter, thread};

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use cni_lab::{bin_dir, go_bin_dir};

use burst::Setting;
use cases::Case;
use empty::Empty;
use picture::Bars;
use report::Report;
use runner::Runner;
use side::Side;
use table::Table;

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Chapter {
    /// Each plugin and the chain, verb by verb
    Verbs,
    /// Many pods at once
    Burst,
    /// The chain and the bursts with one plugin `chain`, beside the reference and beside the list, and what `policy` costs in it
    Folded,
    /// One pod with many host ports, beside many others, and the first connection
    Ports,
    /// The chain with the reference's GOMAXPROCS at 1, 2 and 64, as on machines with so many cores
    Threads,
    /// The chain and the operator's commands beside the state of many pods
    Growth,
    /// STATUS of the example chain, beside VERSION
    Status,
    /// The chain beside one warm process that only asks the kernel for the same objects
    Floor,
    /// The memory of the daemons
    Daemons,
}

/// Compare two folders of CNI plugins.
#[derive(Parser)]
#[command(name = "cargo bench -p ferrule-e2e --")]
struct Cli {
    /// What to measure [default: all]
    chapters: Vec<Chapter>,
    /// Folder with Ferrule's plugins [default: $FERRULE_BIN_DIR, else the output of ./build.sh]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Folder with the plugins to compare with [default: $FERRULE_GO_BIN_DIR, else /usr/lib/cni]
    #[arg(long, value_name = "DIR")]
    reference_dir: Option<PathBuf>,
    /// Folder with an older build of Ferrule's plugins, to measure what a change has brought
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Measured calls of each verb, on each side; for bursts: rounds
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Only cases whose names contain this text, or one of several
    #[arg(long = "filter", value_name = "TEXT")]
    filters: Vec<String>,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
    /// Also draw the main figures of the measured chapters as SVG. A relative path begins at the repository's folder
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Set by cargo bench, not by cargo test
    #[arg(long, hide = true)]
    bench: bool,
}

impl Cli {
    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|text| name.contains(text))
    }

    /// Ours, the reference, and the baseline if there is one, with copies of their programs below this folder.
    fn sides(&self, copies: &Path) -> anyhow::Result<Vec<Side>> {
        let given =
            |dir: &PathBuf| dir.canonicalize().with_context(|| format!("find the folder {}", dir.display()));
        let ours = self.bin_dir.as_ref().map_or_else(bin_dir, given)?;
        let reference = self.reference_dir.as_ref().map_or_else(go_bin_dir, given)?;
        let mut sides = vec![
            Side::ferrule("ours", "ours", 1, copy(&ours, copies, "ours")?),
            Side::reference(2, copy(&reference, copies, "them")?),
        ];
        if let Some(baseline) = &self.baseline {
            sides.push(Side::ferrule("then", "before", 3, copy(&given(baseline)?, copies, "then")?));
        }
        Ok(sides)
    }
}

/// Copies a folder, with its hard links. The time of a call depends on how its program lies on the disk and in the page cache,
/// by up to a tenth: the copies lie alike.
fn copy(dir: &Path, copies: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let to = copies.join(name);
    let status = Command::new("cp").arg("-a").args([dir, &to]).status().context("start cp")?;
    ensure!(status.success(), "copy {}: {status}", dir.display());
    println!("{}: a copy of {}", to.display(), dir.display());
    Ok(to)
}

/// The reference's side three times, with other numbers of threads.
fn with_threads(sides: &[Side]) -> Vec<Side> {
    let [ours, reference, ..] = sides else { return Vec::new() };
    let with = |(name, number, threads)| Side {
        name,
        label: format!("Go, GOMAXPROCS={threads}"),
        number,
        go_threads: Some(threads),
        ..reference.clone()
    };
    iter::once(ours.clone()).chain([("thm1", 2, 1), ("thm2", 3, 2), ("th64", 4, 64)].map(with)).collect()
}

/// One `chain` instead of ours, which come last: the list.
fn with_folded(sides: &[Side]) -> Vec<Side> {
    let Some((ours, others)) = sides.split_first() else { return Vec::new() };
    let list = Side { label: "list".to_owned(), ..ours.clone() };
    iter::once(ours.folded()).chain(others.iter().cloned()).chain([list]).collect()
}

/// What goes into the picture, and whether a call failed.
#[derive(Default)]
struct Outcome {
    bars: Vec<Bars>,
    failed: bool,
}

impl Outcome {
    /// Adds a row to the picture, if both sides have the figure.
    fn draw(&mut self, name: String, ours: Option<f64>, reference: Option<f64>) {
        let bars = ours.zip(reference).map(|(ours, reference)| Bars { name, ours, reference });
        self.bars.extend(bars);
    }
}

/// Measures the bursts.
fn bursts(cli: &Cli, sides: &[Side], outcome: &mut Outcome) -> anyhow::Result<()> {
    let cases = cases::bursts(sides);
    let [chain, unlimited] = &cases;
    let mut table = burst::table();
    let mut errors = Vec::new();
    for (case, pods, at_once, alive) in [
        (chain, 300, 300, 0),
        (unlimited, 300, 300, 0),
        (chain, 64, 16, 0),
        (chain, 64, 16, 100),
        // A bridge has at most 1,023 ports (BR_MAX_PORTS).
        (chain, 64, 16, 900),
    ] {
        let name = format!("{}: {pods} pods, {at_once} at once, beside {alive} others", case.name);
        if !cli.wants(&name) {
            continue;
        }
        eprintln!("{name} ...");
        let figures = burst::measure(case, sides, Setting { pods, at_once, alive }, cli.iterations)?;
        burst::add_rows(&mut table, &name, sides, &figures);
        if alive == 0 {
            for (index, verb) in ["ADD", "DEL"].into_iter().enumerate() {
                let [ours, reference] = [0, 1]
                    .map(|side: usize| figures.get(side).and_then(|figures| figures[index].wall.median()));
                outcome.draw(
                    format!("{}, {pods} pods, {at_once} at once: {verb}", case.name),
                    ours,
                    reference,
                );
            }
        }
        errors.extend(figures.into_iter().flatten().filter_map(|figures| figures.error));
    }
    println!("bursts; {} rounds, in turns; medians\n\n{}", cli.iterations, table.render(cli.markdown));
    errors.iter().for_each(|error| println!("FAILED: {error}"));
    outcome.failed |= !errors.is_empty();
    Ok(())
}

/// Measures the chapters one after the other.
fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let chapters = if cli.chapters.is_empty() { Chapter::value_variants() } else { &cli.chapters };
    let show = |what: &str, table: Table| {
        println!("{what}; {} rounds; medians\n\n{}", cli.iterations, table.render(cli.markdown));
    };
    let copies = tempfile::tempdir().context("make a folder for the programs")?;
    let sides = cli.sides(copies.path())?;
    for chapter in chapters {
        match chapter {
            Chapter::Verbs => {
                compare(cli, &sides, cases::all(&sides).into_iter().chain(folder::all()), &mut outcome);
            }
            Chapter::Burst => bursts(cli, &sides, &mut outcome)?,
            Chapter::Folded => {
                let sides = with_folded(&sides);
                let one = Case { name: "one pod".to_owned(), ..cases::one_chain(&sides) };
                compare(cli, &sides, iter::once(one), &mut Outcome::default());
                let isolated = cases::with_policy(&sides[0]);
                compare(cli, &isolated, iter::once(cases::policy()), &mut Outcome::default());
                bursts(cli, &sides, &mut outcome)?;
            }
            Chapter::Ports => {
                compare(cli, &sides, cases::ports().into_iter(), &mut outcome);
                let mut cases = cases::ports();
                cases.retain(|case| case.own_ports <= 32 && cli.wants(&case.name));
                show("the first connection", connection::measure(&cases, &sides, cli.iterations)?);
            }
            Chapter::Threads => {
                compare(
                    cli,
                    &with_threads(&sides),
                    iter::once(cases::one_chain(&sides)),
                    &mut Outcome::default(),
                );
            }
            Chapter::Growth => {
                compare(cli, &sides, cases::growth(&sides).into_iter(), &mut Outcome::default());
                show("the operator's commands", operators::measure(&sides[0], cli.iterations)?);
            }
            Chapter::Status => status::measure(&sides[0], cli.iterations)?,
            Chapter::Floor => show("the floor", floor::measure(&sides, cli.iterations)?),
            Chapter::Daemons => show("idle daemons", daemons::measure(&sides)?),
        }
    }
    Ok(outcome)
}

/// Runs the cases one after the other.
fn compare(cli: &Cli, sides: &[Side], cases: impl Iterator<Item = Case>, outcome: &mut Outcome) {
    let mut report = Report::default();
    let empty = Empty::compile();
    if let Err(error) = &empty {
        report.note(format!("left out: the empty program: {error:#}"));
    }
    let runner = Runner { sides, empty: empty.as_ref().ok(), iterations: cli.iterations };
    for case in cases.filter(|case| cli.wants(&case.name)) {
        let measured = case.missing(sides).and_then(|missing| match missing {
            Some(missing) => {
                report.note(format!("left out: {}: {missing}", case.name));
                Ok(None)
            }
            None => {
                eprintln!("{} ...", case.name);
                runner.run(&case).map(Some)
            }
        });
        match measured {
            Ok(Some(figures)) => {
                for (name, ours, reference) in figures.of_picture() {
                    outcome.draw(name, ours, reference);
                }
                report.add(figures);
            }
            Ok(None) => {}
            Err(error) => report.failure(format!("FAILED: {}: {error:#}", case.name)),
        }
    }
    print!("{}", report.render(sides, cli.iterations, cli.markdown));
    outcome.failed |= report.has_failures();
}

/// Runs what the command line says. Returns whether no call failed.
fn measure(cli: &Cli) -> anyhow::Result<bool> {
    let outcome = run(cli)?;
    if let Some(file) = &cli.picture {
        let note = format!(
            "Medians of {} rounds, both in turns on {} cores. Repeat it: cargo bench -p ferrule-e2e -- verbs burst --picture FILE",
            cli.iterations,
            thread::available_parallelism().map_or(0, usize::from)
        );
        let title = "The network of a pod: Ferrule beside the Go plugins";
        // cargo starts a benchmark in the folder of its crate.
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file);
        fs::write(&file, picture::draw(title, &note, &outcome.bars))
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(!outcome.failed)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !cli.bench {
        // `cargo test --all-targets` runs benchmarks too, where minutes of measuring are not wanted.
        println!("nothing measured: use cargo bench");
        return ExitCode::SUCCESS;
    }
    match measure(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
