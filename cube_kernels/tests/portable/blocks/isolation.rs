//! What is not finite reaches only those that see it.

use burn_natten_kernels::{Axis, BlockSparse, Problem};
use rand::{SeedableRng, rngs::StdRng};
use test_support::Data;
use test_support::blocks::{Layout, Sparse, random_lists, times};
use test_support::format::F32;
use test_support::portable::client;

use super::device::run;

/// A problem, its lists, and results of data that `spoil` changed.
struct Isolated {
    sparse: BlockSparse,
    lists: Vec<i32>,
    clean: Sparse,
}

impl Isolated {
    fn new() -> Self {
        let problem = Problem::new([Axis::dense(5, 6, false), Axis::dense(9, 8, true)], 4, 8)
            .with_batch(2)
            .with_heads_kv(2);
        let sparse = BlockSparse::new(problem, [2, 4], [3, 3]).with_lists(4, 3);
        let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(50));
        let mut new = Self {
            sparse,
            lists,
            clean: Sparse { out: vec![], lse: vec![], dq: vec![], dk: vec![], dv: vec![] },
        };
        new.clean = new.of(|_| ());
        new
    }

    fn of(&self, spoil: impl Fn(&mut Data)) -> Sparse {
        let mut data = Data::random(&self.sparse.problem, 50, F32.round);
        spoil(&mut data);
        run(&client(), F32, &self.sparse, &self.lists, &data, Layout::Contiguous)
    }

    /// Whether row number `row` of the queries sees row number `key` of the keys.
    fn sees(&self, row: usize, key: usize) -> bool {
        let problem = &self.sparse.problem;
        let (token, head) = (row / problem.heads, row % problem.heads);
        let (batch, query) = (token / problem.queries(), token % problem.queries());
        let (token, head_kv) = (key / problem.heads_kv, key % problem.heads_kv);
        batch == token / problem.keys()
            && head_kv == head / problem.group_size()
            && times(&self.sparse, &self.lists, [batch, query, head], token % problem.keys()) > 0
    }

    fn rows(&self) -> usize {
        self.clean.lse.len()
    }

    fn keys(&self) -> usize {
        self.clean.dk.len() / self.sparse.problem.head_dim
    }
}

/// NaN where a row is reached, and the same as before elsewhere.
fn compare(name: &str, actual: &[f64], clean: &[f64], dim: usize, reached: impl Fn(usize) -> bool) {
    for (row, (actual, clean)) in actual.chunks(dim).zip(clean.chunks(dim)).enumerate() {
        match reached(row) {
            true => assert!(actual.iter().all(|x| x.is_nan()), "{name} {row}: {actual:?}"),
            false => assert_eq!(actual, clean, "{name} {row}"),
        }
    }
}

#[test]
fn keys_and_values_reach_only_rows_that_list_them() {
    let all = Isolated::new();
    // One that some rows see and others, of the same block too, do not.
    let bad = (0..all.keys())
        .max_by_key(|key| (0..all.rows()).filter(|row| all.sees(*row, *key)).count())
        .expect("there are keys");
    let seers: Vec<usize> = (0..all.rows()).filter(|row| all.sees(*row, bad)).collect();
    assert!(!seers.is_empty() && seers.len() < all.rows() / 2, "{seers:?}");
    let key = all.of(|data| data.key[bad * 8..][..8].fill(f64::NAN));
    let value = all.of(|data| data.value[bad * 8..][..8].fill(f64::NAN));
    let is_reached = |row: usize| seers.contains(&row);
    let is_shared = |key: usize| seers.iter().any(|row| all.sees(*row, key));
    for (name, actual) in [("key", &key), ("value", &value)] {
        compare(name, &actual.out, &all.clean.out, 8, is_reached);
        compare(name, &actual.dq, &all.clean.dq, 8, is_reached);
        compare(name, &actual.dk, &all.clean.dk, 8, is_shared);
    }
    compare("key lse", &key.lse, &all.clean.lse, 1, is_reached);
    compare("value lse", &value.lse, &all.clean.lse, 1, |_| false);
    compare("key dv", &key.dv, &all.clean.dv, 8, is_shared);
    compare("value dv", &value.dv, &all.clean.dv, 8, |_| false);
    assert!((0..all.keys()).any(|key| !is_shared(key)));
}

#[test]
fn queries_reach_only_keys_that_they_list() {
    let all = Isolated::new();
    let count = |row: &usize| (0..all.keys()).filter(|key| all.sees(*row, *key)).count();
    let bad = (0..all.rows()).max_by_key(count).expect("there are rows");
    let blind = (0..all.rows()).find(|row| count(row) == 0).expect("a row sees nothing");
    assert!(count(&bad) > 0);
    let query = all.of(|data| {
        data.query[bad * 8..][..8].fill(f64::NAN);
        // Of a row that sees nothing, nothing is used.
        data.query[blind * 8..][..8].fill(f64::NAN);
        data.dlse[blind] = f64::NAN;
        data.dout[blind * 8..][..8].fill(f64::NAN);
    });
    let is_reached = |key: usize| all.sees(bad, key);
    compare("out", &query.out, &all.clean.out, 8, |row| row == bad);
    compare("lse", &query.lse, &all.clean.lse, 1, |row| row == bad);
    compare("dq", &query.dq, &all.clean.dq, 8, |row| row == bad);
    compare("dk", &query.dk, &all.clean.dk, 8, is_reached);
    compare("dv", &query.dv, &all.clean.dv, 8, is_reached);
}
