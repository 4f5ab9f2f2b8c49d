/// Which patches of a map are taken: every `stride` positions one of `size`, of a map with `padding` zeros before and behind each axis.
/// Height first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchGrid {
    /// Positions of a patch.
    pub size: [usize; 2],
    /// Positions from one patch to the next.
    pub stride: [usize; 2],
    /// Zeros in front and behind.
    pub padding: [[usize; 2]; 2],
}

impl PatchGrid {
    /// Patches along each axis of a map; `None` where there are none: a map with its padding is smaller than a patch, or a length is 0.
    pub fn count(&self, sides: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let padded = sides[axis].checked_add(self.padding[axis].iter().sum())?;
            let rest = padded.checked_sub(self.size[axis].max(1))?;
            Some(rest.checked_div(self.stride[axis])? + 1)
        };
        Some([along(0)?, along(1)?])
    }

    /// Zeros in front.
    pub fn before(&self) -> [usize; 2] {
        [self.padding[0][0], self.padding[1][0]]
    }
}

/// Which blocks of tokens are taken: every `stride` tokens one of `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockGrid {
    /// Tokens of a block.
    pub size: usize,
    /// Tokens from the begin of a block to that of the next.
    pub stride: usize,
}

impl BlockGrid {
    /// Whole blocks of so many tokens; tokens behind them are in none.
    ///
    /// # Panics
    ///
    /// If `stride` is zero.
    pub const fn count(&self, tokens: usize) -> usize {
        match tokens.checked_sub(self.size) {
            Some(rest) => rest / self.stride + 1,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_counted_as_convolutions_do() {
        let grid = |size, stride, padding| PatchGrid { size, stride, padding: [padding; 2] };
        let halving = grid([3, 3], [2, 2], [1, 1]);
        assert_eq!(halving.count([224, 57]), Some([112, 29]));
        assert_eq!(halving.count([1, 2]), Some([1, 1]));
        assert_eq!(grid([16, 16], [16, 16], [0, 0]).count([224, 240]), Some([14, 15]));
        assert_eq!(grid([2, 2], [1, 1], [0, 1]).count([5, 5]), Some([5, 5]));
        assert_eq!(grid([4, 4], [1, 1], [0, 0]).count([3, 9]), None);
        assert_eq!(grid([1, 1], [0, 1], [0, 0]).count([3, 9]), None);
    }
}
