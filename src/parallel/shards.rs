//! How tokens lie in shards.

use std::ops::Range;

use crate::AttentionError;
use crate::packed;

/// The lengths of `members` shards of an axis of `length` tokens, which differ by one at most; the longer ones come first.
///
/// ```rust
/// assert_eq!(burn_natten::parallel::even_shards(30, 4), [8, 8, 7, 7]);
/// ```
pub fn even_shards(length: usize, members: usize) -> Vec<usize> {
    (0..members).map(|member| (length + members - 1 - member) / members).collect()
}

/// The tokens of each shard.
pub(super) fn ranges(shards: &[usize]) -> impl Iterator<Item = Range<usize>> + '_ {
    packed::ranges(shards.iter().copied())
}

/// Fails unless shards are there, hold tokens, and are all of an axis.
pub(super) fn validate(shards: &[usize], length: usize) -> Result<(), AttentionError> {
    let refused = |parameter, got, bound| Err(AttentionError::Parameter { parameter, got, bound });
    if shards.is_empty() {
        return refused("members", 0, "at least 1".to_string());
    }
    if let Some(member) = shards.iter().position(|length| *length == 0) {
        let empty = refused("tokens", 0, "at least 1".to_string());
        return empty.map_err(|error| error.of_member(member));
    }
    let all = shards.iter().fold(0, |sum: usize, length| sum.saturating_add(*length));
    if all != length {
        let bound = format!("{length} (the length of the axis)");
        return refused("tokens of all members", all, bound);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_shards_are_all_tokens() {
        for length in 0..20 {
            for members in 1..6 {
                let shards = even_shards(length, members);
                assert_eq!((shards.len(), shards.iter().sum::<usize>()), (members, length));
                assert!(shards.is_sorted_by(|a, b| a >= b) && shards[0] - shards[members - 1] <= 1);
            }
        }
        assert!(even_shards(5, 0).is_empty());
    }
}
