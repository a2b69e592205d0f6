//! Random numbers for tests that try many orders of calls.

use std::time::{SystemTime, UNIX_EPOCH};

/// Small pseudo-random numbers (xorshift64). The variable `FERRULE_SEED` repeats a run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Takes the seed from the variable or from the clock, and prints it.
    pub fn seeded() -> Random {
        let given = std::env::var("FERRULE_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = given.unwrap_or_else(clock);
        println!("FERRULE_SEED={seed}");
        Random(seed | 1)
    }

    /// Other numbers, for another thread.
    pub fn split(&mut self) -> Random {
        self.below(1);
        Random(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }
}
