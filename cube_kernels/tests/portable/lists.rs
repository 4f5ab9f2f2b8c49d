//! Inverse lists against naive ones.

use burn_natten_kernels::sparse::invert;
use burn_natten_kernels::{Axis, BlockSparse, Problem};
use cubecl::client::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::portable::client;

use test_support::blocks::{InverseLists, naive_inverse, random_lists, read_inverse, upload_lists};

fn naive(sparse: &BlockSparse, lists: &[i32]) -> InverseLists {
    naive_inverse(sparse, lists, |list, _| list)
}

fn on_device(client: &Client, sparse: &BlockSparse, lists: &[i32]) -> InverseLists {
    let inverse = invert(client, sparse, &upload_lists(client, lists)).expect("launched");
    read_inverse(client, sparse, inverse)
}

/// Blocks of one token, so that blocks are tokens.
fn sparse(queries: usize, keys: usize, entries: usize) -> BlockSparse {
    let problem =
        Problem::new([Axis::dense(queries, keys, false)], 4, 8).with_batch(2).with_heads_kv(2);
    BlockSparse::new(problem, [1], [1]).with_lists(2, entries)
}

#[test]
fn inverse_lists_are_those_of_a_loop() {
    let client = client();
    let mut rng = StdRng::seed_from_u64(60);
    // Few blocks and many chunks, many blocks and one chunk, no entries, one block, no queries.
    let fixed = [(200, 5, 7), (3, 400, 4), (9, 5, 0), (50, 1, 3), (0, 5, 3), (1, 1, 1)];
    let random = (0..12)
        .map(|_| (rng.random_range(1..300), rng.random_range(1..300), rng.random_range(1..20)));
    let random: Vec<_> = random.collect();
    for (queries, keys, entries) in fixed.into_iter().chain(random) {
        let sparse = sparse(queries, keys, entries);
        let lists = random_lists(&sparse, &mut rng);
        let expected = naive(&sparse, &lists);
        let case = format!("{queries} {keys} {entries}");
        assert_eq!(on_device(&client, &sparse, &lists), expected, "{case}");
    }
    let per_head = sparse(40, 30, 6).with_lists(4, 6);
    let lists = random_lists(&per_head, &mut rng);
    assert_eq!(on_device(&client, &per_head, &lists), naive(&per_head, &lists));
}

#[test]
fn without_key_blocks_there_are_no_lists() {
    let sparse = sparse(5, 0, 3);
    let lists = vec![0; sparse.list_elements()];
    assert!(invert(&client(), &sparse, &upload_lists(&client(), &lists)).is_ok());
}
