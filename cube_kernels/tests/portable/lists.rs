//! Inverse lists against naive ones.

use burn_natten_kernels::sparse::invert;
use burn_natten_kernels::{Axis, BlockSparse, Problem};
use cubecl::client::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::portable::client;

use test_support::blocks::{random_lists, upload_lists};

/// For each sample and head, and each of their key blocks, the query blocks that list it.
type Lists = Vec<Vec<Vec<u32>>>;

fn naive(sparse: &BlockSparse, lists: &[i32]) -> Lists {
    let (batch, heads) = (sparse.problem.batch, sparse.list_heads);
    let mut inverse = vec![vec![vec![]; sparse.key_blocks()]; batch * heads];
    for sample in 0..batch {
        for block in 0..sparse.query_blocks() {
            for head in 0..heads {
                for entry in 0..sparse.entries {
                    let list = (sample * sparse.query_blocks() + block) * heads + head;
                    let named = lists[list * sparse.entries + entry];
                    let places = &mut inverse[sample * heads + head];
                    if let Some(place) = usize::try_from(named).ok().and_then(|i| places.get_mut(i))
                    {
                        place.push(block as u32);
                    }
                }
            }
        }
    }
    inverse
}

fn on_device(client: &Client, sparse: &BlockSparse, lists: &[i32]) -> Lists {
    let lists = upload_lists(client, lists);
    let inverse = invert(client, sparse, &lists).expect("launched");
    let bytes = client.read_one(inverse.handle).expect("the kernels ran");
    let (chunks, _) = bytes.as_chunks::<4>();
    let numbers: Vec<u32> = chunks.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let (blocks, pairs) = (sparse.key_blocks(), sparse.problem.batch * sparse.list_heads);
    let listed = sparse.query_blocks() * sparse.entries;
    assert_eq!(inverse.starts, pairs * (blocks + 1));
    let of_pair = |pair: usize| {
        let starts = &numbers[pair * (blocks + 1)..][..blocks + 1];
        let items = &numbers[inverse.starts + pair * listed..][..listed];
        assert_eq!(starts[0], 0);
        starts.windows(2).map(|ends| items[ends[0] as usize..ends[1] as usize].to_vec()).collect()
    };
    (0..pairs).map(of_pair).collect()
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
