//! Chance that is the same for the same seed.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n.max(1) as u64)).unwrap_or(0)
    }

    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        from + i64::try_from(self.next() % u64::try_from(to - from + 1).unwrap_or(1)).unwrap_or(0)
    }

    /// So many times out of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Milliseconds, short ones far more often than long ones.
    pub fn delay(&mut self, to: i64) -> i64 {
        let top = match self.below(10) {
            0..=5 => to / 50,
            6..=8 => to / 8,
            _ => to,
        };
        self.between(0, top.max(1))
    }
}
