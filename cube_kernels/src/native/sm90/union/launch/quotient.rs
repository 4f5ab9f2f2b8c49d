//! Division by a number that is the same for all.

/// The factor, and how many low bits of a product with it are dropped, by which kernels divide numbers below 2^31.
pub(super) fn quotient(divisor: u32) -> (u32, i32) {
    let shift = 31 + divisor.next_power_of_two().trailing_zeros();
    ((1u64 << shift).div_ceil(u64::from(divisor)) as u32, shift as i32)
}

#[cfg(test)]
mod tests {
    use super::quotient;

    #[test]
    fn quotients_are_exact() {
        for divisor in (1..=4096).chain([65_535, 65_537, 1 << 20, (1 << 30) - 1]) {
            let (magic, shift) = quotient(divisor);
            let most = (1u32 << 31) - 1;
            let multiples =
                [1, 2, 3, most / divisor / 2, most / divisor].map(|times| times * divisor);
            let near = multiples.into_iter().flat_map(|m| [m - 1, m, m + 1]);
            for number in near.filter(|number| *number <= most) {
                let product = u64::from(number) * u64::from(magic);
                assert_eq!((product >> shift) as u32, number / divisor, "{number} / {divisor}");
            }
        }
    }
}
