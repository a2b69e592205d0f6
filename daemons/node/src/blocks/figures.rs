//! What `/metrics` and `/readyz` say of the networks. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cni_common::line::Line;
use ferrule_blocks::ledger::{Claim, Ledger, State};
use ferrule_blocks::plan::{Situation, Supply, unclaimed};
use ferrule_daemon::Metrics;

use crate::serve::Pages;

/// This number of free blocks stands for more.
const MOST: usize = 1024;

/// The networks of this node by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures(BTreeMap<String, Row>);

/// A network. Of several range sets the one with the fewest counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// The free addresses of the open blocks.
    pub(super) free: usize,
    /// The blocks that no node has.
    pub(super) unclaimed: usize,
    /// Whether fewer blocks are free than nodes have one.
    pub(super) is_scarce: bool,
    open: usize,
    closed: usize,
    lost: usize,
    /// Why this node can claim no block.
    pub(super) problem: Option<String>,
}

impl Row {
    pub(super) fn new(
        ledger: &Ledger,
        boot: &str,
        sets: &[Situation],
        claims: &[Claim],
        problem: Option<String>,
    ) -> Row {
        Row {
            free: sets.iter().map(Situation::free).min().unwrap_or_default(),
            unclaimed: (0..ledger.network.sets.len())
                .map(|set| unclaimed(&ledger.network.usual_ranges(set), claims, MOST))
                .min()
                .unwrap_or_default(),
            is_scarce: sets.iter().any(|set| set.supply == Supply::Scarce),
            open: ledger.open(boot).count(),
            closed: ledger.blocks(State::Closed).count(),
            lost: ledger.blocks(State::Lost).count(),
            problem,
        }
    }
}

impl Figures {
    /// Takes over a row. Returns whether it is another one.
    pub(super) fn set(&mut self, network: &str, row: Row) -> bool {
        self.0.insert(network.to_owned(), row.clone()) != Some(row)
    }
}

impl Pages for Figures {
    /// A node whose API server is away serves: pods get addresses of its blocks.
    fn ready(&self) -> (bool, String) {
        let mut text = "ready\n".to_owned();
        for (network, row) in &self.0 {
            if let Some(problem) = &row.problem {
                let _ = writeln!(text, "{}", Line::new(format_args!("network {network}: {problem}")));
            }
        }
        (true, text)
    }

    fn metrics(&self) -> String {
        let mut metrics = Metrics::new("ferrule_blocks_");
        let mut add = |name: &str, help: &str, figure: fn(&Row) -> usize| {
            metrics.add(
                (name, "gauge", help),
                "network",
                self.0.iter().map(|(name, row)| (name, figure(row))),
            );
        };
        add(
            "free_addresses",
            "Free addresses in this node's blocks, of the range set with the fewest.",
            |row| row.free,
        );
        add(
            "unclaimed",
            "Blocks that no node has, of the range set with the fewest; 1024 stands for more.",
            |row| row.unclaimed,
        );
        add("scarce", "1 if fewer blocks are free than nodes have one.", |row| row.is_scarce.into());
        add("open", "Blocks of this node whose addresses pods get.", |row| row.open);
        add("closed", "Blocks that this node will give back.", |row| row.closed);
        add(
            "lost",
            "Blocks that another node may give too, while pods of this node have addresses of them.",
            |row| row.lost,
        );
        add("problem", "1 if this node can claim no block.", |row| row.problem.is_some().into());
        metrics.text()
    }
}

#[cfg(test)]
mod tests {
    use ferrule_blocks::block::Block;
    use ferrule_blocks::ledger::Network;
    use ferrule_blocks::range::{Fixed, Range};

    use super::*;

    fn network() -> Network {
        let range = |subnet: &str, start: &str, end: &str| {
            let [range_start, range_end] = [start, end].map(|ip| ip.parse().unwrap());
            let fixed = Fixed {
                subnet: subnet.parse().unwrap(),
                range_start,
                range_end,
                block_size: 4.try_into().unwrap(),
            };
            Range { fixed, gateway: range_start, exclude: Vec::new(), on_request: false }
        };
        let sets = vec![
            vec![range("10.0.0.0/28", "10.0.0.1", "10.0.0.14")],
            vec![range("fd00::/64", "fd00::1", "fd00::ffff:ffff")],
        ];
        Network {
            network: "net".to_owned(),
            domain: "lan".to_owned(),
            data_dir: "/stores".into(),
            sets,
            link: None,
        }
    }

    fn claim(first: &str) -> Claim {
        let block = Block::of(first.parse().unwrap(), 4.try_into().unwrap());
        let text = |text: &str| text.to_owned();
        Claim {
            block,
            uid: text("u"),
            version: text("1"),
            node: text("n"),
            store: text("s"),
            network: text("net"),
            boot: text("boot"),
            machine: text("m"),
            slot: 0,
        }
    }

    #[test]
    fn the_fullest_range_set_counts() {
        let mut ledger = Ledger::new(network());
        let claims = ["10.0.0.0", "10.0.0.4", "fd00::4"].map(claim);
        ledger.compare(&claims, "s", "boot", |_| false);
        ledger.close(&claims[1].block);
        let set =
            |supply, waiting| Situation { uses: Vec::new(), size: 4.try_into().unwrap(), waiting, supply };
        let row = Row::new(&ledger, "boot", &[set(Supply::Scarce, 0), set(Supply::Plenty, 0)], &claims, None);
        let expected = Row { unclaimed: 2, is_scarce: true, open: 2, closed: 1, ..Row::default() };
        assert_eq!(row, expected);
        assert_eq!(Row::new(&ledger, "other", &[], &[], None).unclaimed, 4);
        let mut figures = Figures::default();
        assert!(figures.set("net", row.clone()) && !figures.set("net", row));
        let metrics = figures.metrics();
        for line in [
            "unclaimed{network=\"net\"} 2",
            "scarce{network=\"net\"} 1",
            "open{network=\"net\"} 2",
            "problem{network=\"net\"} 0",
        ] {
            assert!(metrics.contains(&format!("\nferrule_blocks_{line}\n")), "{line}: {metrics}");
        }
        let problem = Some("no\nway".to_owned());
        assert!(figures.set("net", Row { problem, ..Row::default() }));
        assert_eq!(figures.ready(), (true, "ready\nnetwork net: no way\n".to_owned()));
    }

    #[test]
    fn alerts_ask_for_what_there_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring/blocks-alerts.yaml");
        let rules = std::fs::read_to_string(path).unwrap();
        let mut figures = Figures::default();
        figures.set("net", Row::default());
        let metrics = figures.metrics();
        let expressions: Vec<&str> =
            rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
        assert_eq!(expressions.len(), rules.matches("alert:").count());
        for expression in expressions {
            let names = expression
                .split(|c: char| !c.is_ascii_lowercase() && c != '_')
                .filter(|word| word.starts_with("ferrule_"));
            assert!(names.clone().count() > 0, "{expression}");
            for name in names {
                assert!(metrics.contains(&format!("\n{name}{{network=")), "{name}");
            }
        }
    }
}
