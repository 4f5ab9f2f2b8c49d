//! Inverse lists.

use burn_natten_kernels::BlockSparse;
use burn_natten_kernels::sparse::Inverse;
use cubecl::client::Client;

/// For each sample and head, and each of their key blocks, what names it.
pub type InverseLists = Vec<Vec<Vec<u32>>>;

/// By a loop: `item` makes an entry's item of the number of its list and its place in it.
pub fn naive_inverse(
    sparse: &BlockSparse,
    lists: &[i32],
    item: impl Fn(usize, usize) -> usize,
) -> InverseLists {
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
                        place.push(item(block, entry) as u32);
                    }
                }
            }
        }
    }
    inverse
}

/// Those of a device.
pub fn read_inverse(client: &Client, sparse: &BlockSparse, inverse: Inverse) -> InverseLists {
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
