//! Replays the corpus, and changed copies of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use cni_lab::testing::Random;
use ferrule_fuzz::{TARGETS, Target};

/// Changed copies of each input.
const COPIES: usize = 100;

/// The input itself, then copies with changed, removed and repeated bytes.
fn replay(target: Target, input: &[u8], random: &mut Random) {
    target(input);
    for _ in 0..COPIES {
        let mut copy = input.to_vec();
        for _ in 0..=random.below(4) {
            if copy.is_empty() {
                break;
            }
            let at = random.below(copy.len());
            match random.below(4) {
                0 => copy[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                1 => copy[at] ^= 1 << random.below(8),
                2 => copy.truncate(at),
                _ => copy.extend_from_within(at..),
            }
        }
        target(&copy);
    }
}

#[test]
fn no_input_of_the_corpus_makes_a_decoder_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        let mut random = Random::seeded();
        let mut inputs: Vec<_> =
            fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            // The last line names the input of a panic.
            println!("{}", input.display());
            replay(target, &fs::read(input).unwrap(), &mut random);
        }
    }
    assert_eq!(fs::read_dir(corpus).unwrap().count(), TARGETS.len(), "a folder of no target");
}
