//! What is decoded, what the kernels are specialised by, and how they split it.

use crate::Shape;
use crate::native::Element;
use crate::sparse::Selection;

/// Rows of a product, which are the heads of a group.
const ROWS: usize = 16;
/// Longest vectors.
const MOST_DIM: usize = 256;
/// Entries of a list.
const MOST_ENTRIES: usize = 32;
/// Most bytes of shared memory of a CTA that has keys: what every device gives, less arrays of fixed size.
const MOST_SHARED: usize = 98 << 10;
/// Most bytes of a CTA that selects.
const MOST_SELECT_SHARED: usize = 48 << 10;
/// Threads of a CTA that selects.
pub(super) const SELECT_THREADS: usize = 256;
/// Blocks that a CTA chooses among, and what all of them may leave to the last one.
const SIZES: [usize; 3] = [SELECT_THREADS / 4, SELECT_THREADS / 2, SELECT_THREADS];
const MOST_LEFT: usize = 2048;
/// CTAs that select and share a multiprocessor, for which they have 64 registers a thread.
pub(super) const SELECT_CTAS: usize = 4;
/// CTAs that have keys and share a multiprocessor.
const CTAS: usize = 2;
/// Most steps of a CTA.
const MOST_STEPS: usize = 16;
/// Bounds of what is counted in 32 bits.
const MOST_PAIRS: usize = 1 << 24;
const MOST_TOKENS: usize = 1 << 30;

/// One more token for each sequence of a batch: sizes, no data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoding {
    /// Samples, tokens with the new one, heads, and what is selected: of the one row of each sequence.
    pub selection: Selection,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Tokens that the window holds, with the new one.
    pub window: usize,
    /// Tokens that there are of the window's keys and values: all, or the last ones.
    pub window_tokens: usize,
}

/// What the kernels are specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// Element type of all tensors.
    pub element: Element,
    /// Length of a query.
    pub head_dim: usize,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Heads of queries of a head of keys.
    pub group: usize,
}

impl core::fmt::Display for Schedule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { element, head_dim, head_dim_v, group } = self;
        write!(f, "decode_{}_d{head_dim}_{head_dim_v}_g{group}", element.name())
    }
}

/// A list: `front` forced blocks, `free` of those before `middle`, and the forced ones from there to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub front: usize,
    pub middle: usize,
    pub end: usize,
    pub free: usize,
}

/// How a problem is split over CTAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    /// Of compressed blocks, each of so many times as many keys as a CTA has at a time.
    pub compressed: usize,
    pub compressed_steps: usize,
    /// Of the selection, each of so many blocks, and of the sums of the compressed branch: none where the former have them as well.
    pub parts: usize,
    pub size: usize,
    pub sums: usize,
    /// Of the tokens of a list, and of a window, likewise.
    pub selected: usize,
    pub window: usize,
    pub token_steps: usize,
}

impl Decoding {
    pub(super) fn pairs(&self) -> usize {
        self.selection.batch * self.selection.heads_kv
    }

    /// The shapes of queries, gates, and keys and values of each branch.
    pub(super) fn query_shape(&self) -> Shape {
        self.shape(1, self.selection.heads, self.selection.head_dim)
    }

    pub(super) fn gates_shape(&self) -> Shape {
        self.shape(1, self.selection.heads, 3)
    }

    pub(super) fn key_shapes(&self) -> [Shape; 3] {
        self.token_shapes(self.selection.head_dim)
    }

    pub(super) fn value_shapes(&self) -> [Shape; 3] {
        self.token_shapes(self.head_dim_v)
    }

    fn token_shapes(&self, dim: usize) -> [Shape; 3] {
        let of = &self.selection;
        [of.compressed(), of.tokens, self.window_tokens]
            .map(|tokens| self.shape(tokens, of.heads_kv, dim))
    }

    /// That of so many tokens and heads of each sample.
    pub fn shape(&self, tokens: usize, heads: usize, dim: usize) -> Shape {
        Shape { batch: self.selection.batch, tokens: [1, 1, tokens], heads, dim }
    }

    /// Tokens that the window's keys have, and what is seen of them.
    pub(super) fn seen_in_window(&self) -> usize {
        self.window.min(self.window_tokens)
    }

    /// The list of each head.
    pub(super) fn list(&self) -> List {
        let of = &self.selection;
        let at = of.tokens - 1;
        let middle = (at / of.slc_block + 1).saturating_sub(of.num_local);
        let (front, end) = (of.num_init.min(middle), (at + of.query_tile - 1) / of.slc_block + 1);
        let free = of.num_selected.saturating_sub(front + end - middle);
        List { front, middle, end, free }
    }
}

impl List {
    pub fn candidates(&self) -> usize {
        self.middle - self.front
    }

    /// Whether there is a choice.
    pub fn is_scored(&self) -> bool {
        self.free > 0 && self.candidates() > self.free
    }
}

impl Schedule {
    /// The kernels for a problem.
    ///
    /// # Errors
    ///
    /// What they cannot compute.
    pub fn plan(of: &Decoding, element: Element) -> Result<Self, String> {
        let selection = &of.selection;
        selection.check()?;
        let (head_dim, head_dim_v) = (selection.head_dim, of.head_dim_v);
        for (name, dim) in [("head_dim", head_dim), ("head_dim_v", head_dim_v)] {
            if dim == 0 || !dim.is_multiple_of(16) || dim > MOST_DIM {
                return Err(format!("{name} is {dim}, not a multiple of 16 up to {MOST_DIM}"));
            }
        }
        let group = selection.heads / selection.heads_kv;
        if group > ROWS {
            return Err(format!("{group} heads share a list, more than {ROWS}"));
        }
        if selection.rows != 1 || selection.cmp_top.is_some() {
            return Err("there is one row of each sequence, and no list of super-blocks".into());
        }
        let entries = selection.num_selected;
        if entries > MOST_ENTRIES {
            return Err(format!("a list has {entries} entries, more than {MOST_ENTRIES}"));
        }
        // Scores are multiplied by it in f32.
        if !((selection.scale * std::f64::consts::LOG2_E) as f32).is_finite() {
            return Err(format!("scale is {}, no number of f32", selection.scale));
        }
        let bounded = [
            selection.tokens,
            of.window_tokens,
            selection.cmp_block,
            selection.slc_block,
            selection.query_tile,
            selection.num_init,
            selection.num_local,
        ];
        let places = entries.min(selection.blocks()).saturating_mul(selection.slc_block);
        let pairs = selection.batch.saturating_mul(selection.heads);
        if bounded.into_iter().any(|number| number > MOST_TOKENS)
            || places > MOST_TOKENS
            || pairs > MOST_PAIRS
        {
            return Err("there are more than 2^30 tokens or 2^24 heads".into());
        }
        Ok(Self { element, head_dim, head_dim_v, group })
    }

    /// Keys that a CTA has at a time.
    pub(super) fn keys(&self) -> usize {
        if self.bytes_of(128) <= MOST_SHARED { 128 } else { 64 }
    }

    /// Threads of a CTA that has keys.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn threads(&self) -> usize {
        2 * self.keys()
    }

    /// Its bytes of shared memory.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn shared_memory(&self) -> usize {
        self.bytes_of(self.keys())
    }

    /// Bytes for queries and so many keys with their values, or else for the sums of all warps.
    fn bytes_of(&self, keys: usize) -> usize {
        let Self { head_dim, head_dim_v, group, .. } = self;
        let [key, value] = [head_dim, head_dim_v].map(|dim| 2 * dim + 16);
        let sums = keys / 16 * group * (4 * head_dim_v + 8);
        (ROWS * key + keys * (key + value)).max(sums)
    }

    /// Bytes of a CTA that selects.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn select_memory(&self, of: &Decoding, splits: &Splits) -> usize {
        let list = of.list();
        if !list.is_scored() {
            return 0;
        }
        let (ratio, reach) = of.selection.overlap(false);
        let masses = 4 * ((splits.size * ratio + reach) / 2 * 2);
        // Lists are in two places in turn.
        let lists = |count: usize| 2 * 8 * count * list.free;
        (masses + 8 * splits.size + lists(splits.size / 32)).max(lists(splits.parts))
    }

    /// How a device with so many multiprocessors shares a problem.
    ///
    /// # Errors
    ///
    /// What cannot be shared.
    pub(super) fn splits(&self, of: &Decoding, multiprocessors: usize) -> Result<Splits, String> {
        let (keys, pairs, list) = (self.keys(), of.pairs(), of.list());
        let multiprocessors = multiprocessors.max(1);
        // The steps of a CTA that cost least, where all that it does besides costs as much as so many of them.
        let steps_of = |tiles: [usize; 2], besides: usize| {
            let cost = |steps: usize| {
                let of_pair: usize = tiles.iter().map(|tiles| tiles.div_ceil(steps)).sum();
                let ctas = of_pair.saturating_mul(pairs);
                ctas.div_ceil(CTAS * multiprocessors).saturating_mul(steps + besides)
            };
            let most = tiles[0].max(tiles[1]).clamp(1, MOST_STEPS);
            (1..=most).min_by_key(|steps| cost(*steps)).unwrap_or(1)
        };
        let compressed = of.selection.compressed().div_ceil(keys).max(1);
        let compressed_steps = steps_of([compressed, 0], 1);
        let selected = (of.selection.num_selected.min(of.selection.blocks())
            * of.selection.slc_block)
            .div_ceil(keys);
        let window = of.seen_in_window().div_ceil(keys);
        let token_steps = steps_of([selected, window], 2);
        let slots = SELECT_CTAS * multiprocessors / pairs.max(1);
        let of_size = |size: usize| {
            let parts = if list.is_scored() { list.candidates().div_ceil(size) } else { 1 };
            let compressed = compressed.div_ceil(compressed_steps);
            // Four neighbors of a row have a thread, or eight where there are many splits.
            let lanes = if compressed > 4 { 8 } else { 1 };
            let sums = (self.group * self.head_dim_v / 4 * lanes).div_ceil(SELECT_THREADS);
            Splits {
                compressed,
                compressed_steps,
                parts,
                size,
                sums: slots.saturating_sub(parts).min(sums),
                selected: selected.div_ceil(token_steps),
                window: window.div_ceil(token_steps),
                token_steps,
            }
        };
        let fits = |splits: &Splits| {
            let left = splits.parts.saturating_mul(list.free);
            let (ratio, reach) = of.selection.overlap(false);
            let is_small = ratio <= MOST_SELECT_SHARED && reach <= MOST_SELECT_SHARED;
            !list.is_scored()
                || (left <= MOST_LEFT
                    && is_small
                    && self.select_memory(of, splits) <= MOST_SELECT_SHARED)
        };
        // The smallest parts that leave no CTA waiting for another one's place.
        let sizes: Vec<_> = SIZES.map(of_size).into_iter().filter(fits).collect();
        let is_small = |of: &&Splits| of.parts <= slots;
        let splits = sizes.iter().find(is_small).or(sizes.last());
        let splits = *splits.ok_or("there are too many blocks to select from")?;
        let select = splits.parts + splits.sums;
        let most = splits.compressed.max(select).max(splits.selected + splits.window);
        match most.saturating_mul(pairs) < 1 << 31 {
            true => Ok(splits),
            false => Err("there are 2^31 CTAs or more".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoding(batch: usize, heads_kv: usize, tokens: usize) -> Decoding {
        let mut selection = Selection::new(tokens, 16 * heads_kv, 128);
        (selection.batch, selection.heads_kv, selection.rows) = (batch, heads_kv, 1);
        Decoding { selection, head_dim_v: 128, window: 512, window_tokens: tokens }
    }

    #[test]
    fn one_sequence_is_on_the_whole_chip_and_many_leave_little() {
        let one = decoding(1, 4, 65536);
        let schedule = Schedule::plan(&one, Element::Bf16).expect("there are kernels");
        assert_eq!((schedule.keys(), schedule.threads()), (128, 256));
        let splits = schedule.splits(&one, 132).expect("it is split");
        let Splits {
            compressed,
            compressed_steps,
            parts,
            size,
            sums,
            selected,
            window,
            token_steps,
        } = splits;
        assert_eq!((compressed, compressed_steps), (32, 1));
        assert_eq!((selected, window, token_steps), (8, 4, 1));
        assert_eq!((parts, size, sums), (16, 64, 16));
        let many = schedule.splits(&decoding(32, 4, 65536), 132).expect("it is split");
        assert_eq!((many.compressed, many.compressed_steps), (2, 16));
        assert_eq!((many.selected, many.window, many.token_steps), (1, 1, 8));
        assert_eq!((many.parts, many.size, many.sums), (4, 256, 0));
    }

    #[test]
    fn lists_have_their_forced_blocks() {
        let of = decoding(1, 4, 65536);
        assert_eq!(of.list(), List { front: 1, middle: 1022, end: 1024, free: 13 });
        assert!(of.list().is_scored() && !decoding(1, 4, 640).list().is_scored());
        assert_eq!(decoding(1, 4, 1).list(), List { front: 0, middle: 0, end: 1, free: 15 });
    }

    #[test]
    fn refusals_name_what_is_not_computed() {
        let refused = |change: fn(&mut Decoding)| {
            let mut of = decoding(1, 4, 1000);
            change(&mut of);
            Schedule::plan(&of, Element::F16).expect_err("it is refused")
        };
        for (text, name) in [
            (refused(|of| of.selection.head_dim = 72), "head_dim is 72"),
            (refused(|of| of.head_dim_v = 272), "head_dim_v is 272"),
            (refused(|of| of.selection.heads_kv = 2), "32 heads share a list"),
            (refused(|of| of.selection.num_selected = 33), "33 entries"),
            (refused(|of| of.selection.rows = 2), "one row"),
            (refused(|of| of.selection.scale = f64::MAX), "scale is"),
            (refused(|of| of.selection.slc_block = 1 << 31), "2^30 tokens"),
        ] {
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn long_sequences_have_larger_parts_until_there_are_too_many_blocks() {
        let of = decoding(1, 4, 1 << 20);
        let schedule = Schedule::plan(&of, Element::Bf16).expect("there are kernels");
        assert_eq!(schedule.splits(&of, 132).map(|splits| splits.size), Ok(128));
        let of = decoding(1, 4, 1 << 24);
        assert!(schedule.splits(&of, 132).is_err());
    }
}
