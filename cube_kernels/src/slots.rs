//! The slots of a window: where the pair of a query and a key that it sees stands in a tensor of attention weights.
//!
//! A query has as many slots as a whole window has keys, `kernel_size` along each axis, numbered row-major, and behind them one for
//! each additional token. Along an axis, slot `s` is the `s`-th key that the query sees. A query of a causal axis that sees fewer keys
//! fills its first slots; the others are *hidden*, as is a slot that is hidden along any axis.
//!
//! ```rust
//! use burn_natten_kernels::{Axis, Problem};
//!
//! let causal = Axis::neighborhood(9, 3).with_causal(true);
//! let problem = Problem::new([causal], 1, 8);
//! assert_eq!([0, 1, 2].map(|slot| problem.slot_key(1, slot)), [Some(0), Some(1), None]);
//! assert_eq!([0, 1, 2].map(|slot| problem.slot_key(5, slot)), [Some(3), Some(4), Some(5)]);
//! ```

use crate::{Axis, MAX_RANK, Problem};

impl Axis {
    /// The key in a slot of a query; `None` if it is hidden.
    pub fn slot_key(&self, query: usize, slot: usize) -> Option<usize> {
        let (first, count) = self.window(query);
        (slot < count).then(|| first + slot * self.dilation)
    }

    /// The entry of a relative position bias for a query and a key that it sees: `(key - query) / dilation + kernel_size - 1`.
    pub fn offset(&self, query: usize, key: usize) -> usize {
        key / self.dilation + self.kernel_size - 1 - query / self.dilation
    }
}

impl Problem {
    /// Slots of a window along each axis.
    pub fn slot_axes(&self) -> [usize; MAX_RANK] {
        self.axes.map(|axis| axis.kernel_size)
    }

    /// Slots of a window, without those of the additional tokens.
    pub fn slots(&self) -> usize {
        self.slot_axes().iter().product()
    }

    /// Elements of attention weights, `[batch, queries, heads, slots]`, a slot for each additional token included.
    pub fn weights(&self) -> usize {
        self.batch * self.queries() * self.heads * (self.slots() + self.additional)
    }

    /// The key in a slot of a window, both numbered row-major; `None` if it is hidden.
    pub fn slot_key(&self, query: usize, slot: usize) -> Option<usize> {
        let at = self.slot_place(query, slot)?;
        let [_, y, x] = self.axes.map(|axis| axis.keys);
        Some((at[0] * y + at[1]) * x + at[2])
    }

    /// The entry of a relative position bias `[heads, 2 * kernel_size - 1, ..]`, numbered row-major, that belongs to a slot; `None` if
    /// it is hidden.
    pub fn slot_offset(&self, query: usize, slot: usize) -> Option<usize> {
        let at = self.slot_place(query, slot)?;
        let query = self.query_coordinates(query);
        let [z, y, x] = std::array::from_fn(|i| self.axes[i].offset(query[i], at[i]));
        let [_, along_y, along_x] = self.bias_extents();
        Some((z * along_y + y) * along_x + x)
    }

    /// Entries of a relative position bias of one head.
    pub fn bias_entries(&self) -> usize {
        self.bias_extents().iter().product()
    }

    /// Coordinates of the key in a slot.
    fn slot_place(&self, query: usize, slot: usize) -> Option<[usize; MAX_RANK]> {
        let query = self.query_coordinates(query);
        let [_, y, x] = self.slot_axes();
        let slot = [slot / (y * x), slot / x % y, slot % x];
        let mut at = [0; MAX_RANK];
        for axis in 0..MAX_RANK {
            at[axis] = self.axes[axis].slot_key(query[axis], slot[axis])?;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every slot of an axis, counted off among all keys by the definition.
    #[test]
    fn slots_count_the_keys_that_a_query_sees() {
        for (length, kernel_size, stride, dilation, is_causal) in
            [(9, 3, 1, 1, false), (11, 4, 3, 2, true), (7, 2, 2, 3, true), (8, 8, 1, 1, false)]
        {
            let axis = Axis::neighborhood(length, kernel_size)
                .with_stride(stride)
                .with_dilation(dilation)
                .with_causal(is_causal);
            for query in 0..length {
                let sees = |key: &usize| {
                    let (first, count) = axis.visitors(*key);
                    (0..count).any(|i| first + i * dilation == query)
                };
                let keys: Vec<_> = (0..length).filter(sees).collect();
                for slot in 0..kernel_size {
                    let key = axis.slot_key(query, slot);
                    assert_eq!(key, keys.get(slot).copied(), "{axis:?} query {query} slot {slot}");
                    if let Some(key) = key {
                        let distance = (key as isize - query as isize) / dilation as isize;
                        let offset = axis.offset(query, key);
                        assert_eq!(offset as isize, distance + kernel_size as isize - 1);
                        assert!(offset < 2 * kernel_size - 1);
                    }
                }
            }
        }
    }

    #[test]
    fn slots_of_several_axes_are_row_major() {
        let axes = [
            Axis::neighborhood(4, 2),
            Axis::neighborhood(5, 3).with_causal(true),
            Axis::neighborhood(6, 2).with_dilation(3),
        ];
        let problem = Problem::new(axes, 1, 1);
        assert_eq!((problem.slots(), problem.bias_extents()), (12, [3, 5, 3]));
        for query in 0..problem.queries() {
            let mut slot = 0;
            let [z, y, x] = problem.query_coordinates(query);
            for i in 0..2 {
                for j in 0..3 {
                    for k in 0..2 {
                        let at = [
                            axes[0].slot_key(z, i),
                            axes[1].slot_key(y, j),
                            axes[2].slot_key(x, k),
                        ];
                        let key = match at {
                            [Some(z), Some(y), Some(x)] => Some((z * 5 + y) * 6 + x),
                            _ => None,
                        };
                        assert_eq!(problem.slot_key(query, slot), key);
                        let offset = key.map(|key| {
                            let [key_z, key_y, key_x] = problem.key_coordinates(key);
                            let [a, b] = [key_z + 1 - z, key_y + 2 - y];
                            (a * 5 + b) * 3 + (key_x + 3 - x) / 3
                        });
                        assert_eq!(problem.slot_offset(query, slot), offset);
                        slot += 1;
                    }
                }
            }
        }
    }
}
