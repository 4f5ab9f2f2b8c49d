//! Small problems of every kind, and data for them.

use burn_natten_kernels::{Axis, MAX_RANK, Problem};

use crate::support::{Data, axis};

fn problem(axes: &[Axis], head_dim: usize, head_dim_v: usize) -> Problem {
    let mut padded = [Axis::UNIT; MAX_RANK];
    padded[MAX_RANK - axes.len()..].copy_from_slice(axes);
    let scale = (head_dim as f64).sqrt().recip();
    let (batch, heads, heads_kv) = (1, 2, 2);
    Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional: 0, scale, axes: padded }
}

pub fn all() -> Vec<Problem> {
    let plane = [axis(7, 3, 1, 2, false), axis(19, 5, 2, 1, false)];
    let space = [axis(3, 2, 1, 1, false), axis(6, 3, 1, 1, false), axis(9, 4, 1, 2, true)];
    vec![
        Problem { heads_kv: 1, batch: 2, ..problem(&[axis(150, 9, 1, 1, true)], 16, 16) },
        Problem { additional: 5, ..problem(&plane, 32, 16) },
        Problem { batch: 2, heads: 1, heads_kv: 1, ..problem(&space, 24, 40) },
        Problem { additional: 20, ..problem(&[Axis::dense(40, 23, false)], 7, 5) },
    ]
}

/// The data, and the same with a number that is not finite in one vector.
pub fn spoiled(problem: &Problem, clean: &Data) -> Vec<(String, Data)> {
    let mut all = vec![("clean".to_string(), clean.clone())];
    for poison in [f64::NAN, f64::INFINITY] {
        for is_key in [true, false] {
            let mut data = clean.clone();
            let (values, dim) = match is_key {
                true => (&mut data.key, problem.head_dim),
                false => (&mut data.value, problem.head_dim_v),
            };
            let row = values.len() / dim / 2;
            values[row * dim + dim / 2] = poison;
            all.push((format!("{poison} in {}", if is_key { "a key" } else { "a value" }), data));
        }
    }
    all
}
