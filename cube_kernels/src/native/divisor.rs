//! Division by a number that is the same for all.

/// The kernels' `Divisor`, see `cuda/divisor.cuh`: of numbers below 2^31.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Divisor {
    value: u32,
    magic: u32,
    shift: u32,
    unused: u32,
}

impl Divisor {
    /// Of a divisor above 0, with `shift` the logarithm of the divisor, rounded up, and `magic` what the multiplier is above 2^32.
    pub const fn new(value: usize) -> Self {
        let shift = value.next_power_of_two().trailing_zeros();
        let magic = ((((1u64 << shift) - value as u64) << 32) / value as u64 + 1) as u32;
        Self { value: value as u32, magic, shift, unused: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    /// As the kernels do it.
    fn divide(number: u32, by: Divisor) -> u32 {
        let high = ((u64::from(number) * u64::from(by.magic)) >> 32) as u32;
        (high + number) >> by.shift
    }

    #[test]
    fn quotients_are_exact() {
        const MOST: usize = (1 << 31) - 1;
        let large = [65_535, 65_537, 1 << 20, (1 << 30) - 1, 1 << 30, MOST];
        for divisor in (1..=4096).chain(large) {
            let by = Divisor::new(divisor);
            let times = [0, 1, 2, 3, 5, MOST / divisor / 2, MOST / divisor];
            let near = times.into_iter().flat_map(|times| {
                let multiple = times * divisor;
                [multiple.saturating_sub(1), multiple, multiple + 1, multiple + 3]
            });
            for number in near.chain([12_345_678, MOST]).filter(|number| *number <= MOST) {
                let quotient = divide(number as u32, by) as usize;
                assert_eq!(quotient, number / divisor, "{number} / {divisor}");
            }
        }
    }
}
