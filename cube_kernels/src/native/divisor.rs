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
        for divisor in (1..=4096).chain([65_535, 65_537, 1 << 20, (1 << 30) - 1, 1 << 30]) {
            let by = Divisor::new(divisor as usize);
            let most = (1u32 << 31) - 1;
            let multiples =
                [1, 2, 3, most / divisor / 2, most / divisor].map(|times| times * divisor);
            let near = multiples.into_iter().flat_map(|m| [m.saturating_sub(1), m, m + 1]);
            for number in near.filter(|number| *number <= most) {
                assert_eq!(divide(number, by), number / divisor, "{number} / {divisor}");
            }
        }
    }
}
