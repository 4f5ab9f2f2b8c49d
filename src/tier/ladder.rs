use super::Tier;

/// The tiers that can compute a pass, the preferred one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ladder {
    /// Bit `i` stands for tier `i` of [`Tier::ALL`].
    rungs: u8,
}

impl Ladder {
    pub fn first(&self) -> Tier {
        self.iter().next().unwrap_or(Tier::Reference)
    }

    /// Whether any tier has kernels of its own, so that it writes to outputs that it is given.
    #[cfg_attr(not(any(feature = "cube", feature = "flex")), allow(dead_code))]
    pub fn has_kernels(&self) -> bool {
        self.first() != Tier::Reference
    }

    pub fn iter(&self) -> impl Iterator<Item = Tier> + use<> {
        let rungs = self.rungs;
        let is_rung = move |(place, _): &(usize, Tier)| rungs >> place & 1 == 1;
        Tier::ALL.into_iter().enumerate().filter(is_rung).map(|(_, tier)| tier)
    }
}

impl FromIterator<Tier> for Ladder {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        let place = |tier| Tier::ALL.iter().position(|other| *other == tier);
        let bits = tiers.into_iter().filter_map(place).map(|place| 1 << place);
        Self { rungs: bits.fold(0, |rungs, bit| rungs | bit) }
    }
}

impl From<Tier> for Ladder {
    fn from(tier: Tier) -> Self {
        [tier].into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_come_in_the_order_of_preference() {
        let ladder: Ladder = [Tier::Reference, Tier::Hopper, Tier::Portable].into_iter().collect();
        let rungs: Vec<_> = ladder.iter().collect();
        assert_eq!(rungs, [Tier::Hopper, Tier::Portable, Tier::Reference]);
        assert_eq!(ladder.first(), Tier::Hopper);
        assert!(ladder.has_kernels() && !Ladder::from(Tier::Reference).has_kernels());
        assert_eq!(Ladder::from(Tier::Flex).iter().collect::<Vec<_>>(), [Tier::Flex]);
    }
}
