//! Which keys a query sees along one axis, and which queries see a key.
//!
//! Axes are independent: a key is visible when it is visible along every axis. An axis of length
//! `L` with dilation `D` falls into `D` *groups* that never see each other: index `i` belongs to
//! group `g = i mod D` at position `q = i div D`, and the group has `n = ceil((L - g) / D)`
//! members. All windows here are half-open intervals `start..end` of positions inside the group.
//!
//! ```text
//! non-causal  leader = min((q div S) * S + S div 2, n - 1)
//!             start  = clamp(leader - K div 2, 0, n - K)        end = start + K
//! causal      leader = min((q div S) * S + S - 1, n - 1)
//!             start  = max(leader - K + 1, 0)                   end = min(q + 1, n)
//! ```
//!
//! `q` is where a query stands among the keys. Queries may be a part of the axis, or more or fewer than its
//! keys: then query `i` stands at [`shifted()`]`(i, ahead, behind)`.
//!
//! Edges shift a window instead of shrinking it, and `start` and `end` never decrease with `q`.
//! Therefore the queries that see a key are an interval too: [`visitor_start()`]`..`[`visitor_end()`].
//!
//! Dense attention is the case `K == n`: everything is visible, or, causal, everything up to where the
//! query stands. A query that stands before the first key then sees nothing.
//!
//! ```rust
//! use burn_natten_kernels::window::{visitor_end, visitor_start, window_end, window_start};
//!
//! // 10 positions, kernel size 5, stride 1, not causal: query 9 sees 5..10.
//! let start = window_start(9, 10, 5, 1, false);
//! assert_eq!(start..window_end(9 + 1, start, 10, 5, false), 5..10);
//! // Key 9 is seen by queries 7..10.
//! assert_eq!(visitor_start(9, 10, 5, 1, false)..visitor_end(9, 10, 10, 5, 1, false), 7..10);
//! ```
//!
//! The functions are plain Rust and, with the feature `cube`, CubeCL code as well. They use only
//! what both understand, and only unsigned arithmetic that cannot wrap.

// `#[cube]` adds a module beside each function, without docs.
#![cfg_attr(feature = "cube", allow(missing_docs))]

#[cfg(feature = "cube")]
use cubecl::prelude::*;

/// Members of dilation group `group` of an axis of `length` elements.
#[cfg_attr(feature = "cube", cube)]
pub fn group_length(length: usize, dilation: usize, group: usize) -> usize {
    (length + dilation - 1 - group) / dilation
}

/// `position` moved on by `ahead` and back by `behind`, one of which is 0; not below 0.
///
/// From positions of queries to those of keys; with `ahead` and `behind` exchanged, the other way round.
#[cfg_attr(feature = "cube", cube)]
pub fn shifted(position: usize, ahead: usize, behind: usize) -> usize {
    let mut at = position + ahead;
    if at > behind {
        at -= behind;
    } else {
        at = 0usize;
    }
    at
}

/// First position that the query at `position` sees, in a group of `length` keys.
#[cfg_attr(feature = "cube", cube)]
pub fn window_start(
    position: usize,
    length: usize,
    kernel_size: usize,
    stride: usize,
    is_causal: bool,
) -> usize {
    let first = (position / stride) * stride;
    let mut start = 0usize;
    if is_causal {
        let mut leader = first + stride - 1;
        if leader > length - 1 {
            leader = length - 1;
        }
        if leader + 1 > kernel_size {
            start = leader + 1 - kernel_size;
        }
    } else {
        let mut leader = first + stride / 2;
        if leader > length - 1 {
            leader = length - 1;
        }
        if leader > kernel_size / 2 {
            start = leader - kernel_size / 2;
        }
        if start > length - kernel_size {
            start = length - kernel_size;
        }
    }
    start
}

/// One past the last position that a query sees whose window begins at `start`. The query stands just before
/// position `next`, or, where that is 0, before all keys.
#[cfg_attr(feature = "cube", cube)]
pub fn window_end(
    next: usize,
    start: usize,
    length: usize,
    kernel_size: usize,
    is_causal: bool,
) -> usize {
    let mut end = start + kernel_size;
    if is_causal {
        end = next;
        if end > length {
            end = length;
        }
    }
    end
}

/// First query position that sees the key at `position`, where all queries stand before position `queries`.
///
/// Empty when it is not below [`visitor_end()`]: causal attention of fewer queries than keys may leave keys
/// unseen.
#[cfg_attr(feature = "cube", cube)]
pub fn visitor_start(
    position: usize,
    queries: usize,
    kernel_size: usize,
    stride: usize,
    is_causal: bool,
) -> usize {
    let mut start = 0usize;
    if is_causal {
        start = position;
    } else if position >= kernel_size {
        // The window has to start at `position - kernel_size + 1` or later.
        start = first_with_leader(position + 1 - kernel_size + kernel_size / 2, stride, stride / 2);
    }
    if start > queries {
        start = queries;
    }
    start
}

/// One past the last query position that sees the key at `position`, in a group of `length` keys, where all queries
/// stand before position `queries`.
#[cfg_attr(feature = "cube", cube)]
pub fn visitor_end(
    position: usize,
    queries: usize,
    length: usize,
    kernel_size: usize,
    stride: usize,
    is_causal: bool,
) -> usize {
    // The first query whose window starts behind `position`, if there is one.
    let mut end = queries;
    if is_causal {
        if position + kernel_size < length {
            end = first_with_leader(position + kernel_size, stride, stride - 1);
        }
    } else if position + kernel_size < length {
        end = first_with_leader(position + 1 + kernel_size / 2, stride, stride / 2);
    }
    if end > queries {
        end = queries;
    }
    end
}

/// First position of the first stride group whose leader, `offset` behind its first member, is at
/// `leader` or later.
#[cfg_attr(feature = "cube", cube)]
fn first_with_leader(leader: usize, stride: usize, offset: usize) -> usize {
    let mut first = 0usize;
    if leader > offset {
        first = (leader - offset).div_ceil(stride) * stride;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every window of an axis, straight from the definition with signed arithmetic.
    fn sees(q: i64, p: i64, n: i64, k: i64, s: i64, causal: bool) -> bool {
        let (start, end) = if causal {
            let leader = ((q / s) * s + s - 1).min(n - 1);
            ((leader - k + 1).max(0), q + 1)
        } else {
            let leader = ((q / s) * s + s / 2).min(n - 1);
            let start = (leader - k / 2).clamp(0, n - k);
            (start, start + k)
        };
        start <= p && p < end
    }

    #[test]
    fn windows_and_visitors_match_the_definition() {
        for n in 1..=13usize {
            for k in 1..=n {
                for s in 1..=k {
                    for causal in [false, true] {
                        for q in 0..n {
                            let start = window_start(q, n, k, s, causal);
                            let end = window_end(q + 1, start, n, k, causal);
                            for p in 0..n {
                                let expected =
                                    sees(q as i64, p as i64, n as i64, k as i64, s as i64, causal);
                                let case = format!("n {n} k {k} s {s} causal {causal} q {q} p {p}");
                                assert_eq!(start <= p && p < end, expected, "window: {case}");
                                let first = visitor_start(p, n, k, s, causal);
                                let last = visitor_end(p, n, n, k, s, causal);
                                assert_eq!(first <= q && q < last, expected, "visitor: {case}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn dense_attention_is_a_window_of_all_keys() {
        for queries in 1..9usize {
            for keys in 1..9usize {
                for causal in [false, true] {
                    for q in 0..queries {
                        let start = window_start(q, keys, keys, 1, causal);
                        let end = window_end(q + 1, start, keys, keys, causal);
                        for p in 0..keys {
                            let expected = !causal || p <= q;
                            let case = format!("{queries}x{keys} causal {causal} q {q} p {p}");
                            assert_eq!(start <= p && p < end, expected, "window: {case}");
                            let first = visitor_start(p, queries, keys, 1, causal);
                            let last = visitor_end(p, queries, keys, keys, 1, causal);
                            assert_eq!(first <= q && q < last, expected, "visitor: {case}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn groups_partition_the_axis() {
        for length in 1..30usize {
            for dilation in 1..=length {
                let total: usize = (0..dilation).map(|g| group_length(length, dilation, g)).sum();
                assert_eq!(total, length);
            }
        }
    }
}
