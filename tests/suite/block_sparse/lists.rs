//! The best of scores, on every device.

use burn::tensor::{DType, Tensor};
use burn_natten::block_lists::top_n;

use crate::support::devices;

/// Short lists and long ones, equal scores, blocks that are not to be seen, and scores that are views.
#[test]
fn the_best_are_listed_in_order() {
    const ROWS: usize = 2 * 3;
    for device in devices() {
        for (count, entries) in [(7, 3), (7, 7), (300, 256)] {
            let score = |row: usize, block: usize| -> f32 {
                match (block * 7 + row * 5) % 13 {
                    0 if block.is_multiple_of(2) => f32::NAN,
                    0 => f32::NEG_INFINITY,
                    some => ((block * 37 + row * 11) % 101) as f32 - some as f32 * 0.5,
                }
            };
            // Blocks before heads in memory.
            let places = (0..2)
                .flat_map(|q| (0..count).flat_map(move |b| (0..3).map(move |h| (q * 3 + h, b))));
            let values: Vec<f32> = places.map(|(row, block)| score(row, block)).collect();
            let scores = Tensor::<1>::from_data(values.as_slice(), (&device.device, DType::F32));
            let scores = scores.reshape([1, 2, count, 3]).swap_dims(2, 3);
            let lists = top_n(scores, entries);
            assert_eq!(lists.dims(), [1, 2, 3, entries]);
            let lists = lists.to_data().convert::<i64>().try_into_vec::<i64>().expect("integers");
            for row in 0..ROWS {
                let mut order: Vec<usize> =
                    (0..count).filter(|b| score(row, *b).is_finite()).collect();
                order.sort_by(|a, b| score(row, *b).total_cmp(&score(row, *a)));
                let got = &lists[row * entries..(row + 1) * entries];
                let there = order.len().min(entries);
                let what = format!("{}, {entries} of {count}, row {row}: {got:?}", device.name);
                assert!(got[there..].iter().all(|block| *block == -1), "{what}");
                for (block, want) in got[..there].iter().zip(&order) {
                    let block = usize::try_from(*block).unwrap_or_else(|_| panic!("{what}"));
                    assert_eq!(score(row, block), score(row, *want), "{what}");
                }
                let mut seen = got[..there].to_vec();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), there, "{what}");
                if device.name != "flex" {
                    // The first of equals.
                    let want: Vec<i64> = order[..there].iter().map(|block| *block as i64).collect();
                    assert_eq!(got[..there], want, "{what}");
                }
            }
        }
    }
}
