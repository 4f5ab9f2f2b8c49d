//! The window arithmetic of `cuda/geometry.cuh`, line by line in signed 32-bit Rust, against
//! [`window`](crate::window). A change there has to be made here, too.

use crate::window::{visitor_end, visitor_start, window_end, window_start};

/// What the kernels know of an axis, with CAUSAL and STRIDED.
struct AxisParams {
    kernel: i32,
    stride: i32,
    causal: bool,
    strided: bool,
}

impl AxisParams {
    fn first_with_leader(&self, leader: i32, offset: i32) -> i32 {
        let leader = (leader - offset).max(0);
        match self.strided {
            true => (leader + self.stride - 1) / self.stride * self.stride,
            false => leader,
        }
    }

    /// With INVERSE.
    fn visitors(&self, row: i32, keys: i32, queries: i32) -> (i32, i32) {
        let row = row.min(keys - 1);
        let (behind, half) = (self.kernel / 2, self.stride / 2);
        let (mut start, mut end) = (0, queries);
        if self.causal {
            start = row;
            if row + self.kernel < keys {
                end = self.first_with_leader(row + self.kernel, self.stride - 1);
            }
        } else {
            if row >= self.kernel {
                start = self.first_with_leader(row + 1 - self.kernel + behind, half);
            }
            if row + self.kernel < keys {
                end = self.first_with_leader(row + 1 + behind, half);
            }
        }
        (start.min(queries), end.min(queries))
    }

    fn window(&self, row: i32, queries: i32, keys: i32) -> (i32, i32) {
        let row = row.min(queries - 1);
        let first = if self.strided { row / self.stride * self.stride } else { row };
        if self.causal {
            let leader = (first + self.stride - 1).min(keys - 1);
            ((leader - self.kernel + 1).max(0), (row + 1).min(keys))
        } else {
            let leader = (first + self.stride / 2).min(keys - 1);
            let start = (leader - self.kernel / 2).max(0).min(keys - self.kernel);
            (start, start + self.kernel)
        }
    }
}

/// Rows beyond the group are those of its last member.
fn check(queries: usize, keys: usize, kernel: usize, stride: usize, causal: bool) {
    let case = format!("{queries} x {keys}, kernel {kernel}, stride {stride}, causal {causal}");
    let as_pair = |start: usize, end: usize| (start as i32, end as i32);
    // The general code holds for a stride of 1, too.
    for strided in [true, false].into_iter().filter(|strided| *strided || stride == 1) {
        let axis = AxisParams { kernel: kernel as i32, stride: stride as i32, causal, strided };
        for row in 0..keys + 3 {
            let key = row.min(keys - 1);
            let start = visitor_start(key, queries, kernel, stride, causal);
            let end = visitor_end(key, queries, keys, kernel, stride, causal);
            let actual = axis.visitors(row as i32, keys as i32, queries as i32);
            assert_eq!(actual, as_pair(start, end), "queries of key {row}: {case}");
            // As unsigned numbers, masks take what lies between.
            assert!(start <= end, "{case}");
        }
        for row in 0..queries + 3 {
            let query = row.min(queries - 1);
            let start = window_start(query, keys, kernel, stride, causal);
            let end = window_end(query + 1, start, keys, kernel, causal);
            let actual = axis.window(row as i32, queries as i32, keys as i32);
            assert_eq!(actual, as_pair(start, end), "keys of query {row}: {case}");
        }
    }
}

#[test]
fn self_attention() {
    for length in 1..=14 {
        for kernel in 1..=length {
            for stride in 1..=kernel {
                for causal in [false, true] {
                    check(length, length, kernel, stride, causal);
                }
            }
        }
    }
}

#[test]
fn dense_attention() {
    for queries in 1..=9 {
        for keys in 1..=9 {
            for causal in [false, true] {
                check(queries, keys, keys, 1, causal);
            }
        }
    }
}
