//! What a kernel is specialised by, and how it is chosen.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use crate::native::Element;
use crate::{Axis, MAX_RANK, Problem};

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Weights of rows and tokens.
    Dots,
    /// Rows of weights and tokens.
    Sums,
    /// Tokens of weights and rows.
    Spread,
}

/// Most bytes of shared memory: what every device gives a CTA.
const MAX_SHARED: usize = 99 << 10;
/// Bytes with which two CTAs and more share a multiprocessor, as its halo gets small beside a tile.
const GOOD_SHARED: usize = 84 << 10;
/// Shared memory of a multiprocessor of a large GPU, and what each of its CTAs takes besides.
const MULTIPROCESSOR: usize = 227 << 10;
const RESERVED: usize = 1 << 10;
/// Warps of a multiprocessor with which one or the other has something to do.
const GOOD_WARPS: usize = 16;
/// Registers of a multiprocessor.
const REGISTERS: usize = 1 << 16;
/// Longest vectors: a warp has the sums of 16 in registers.
const MAX_DIM: usize = 128;
/// Most counterparts of a part along each axis: a word has a bit for each line, and kernels have no loop over columns.
const MAX_SPAN: [usize; 2] = [63, 64];
/// Lines and columns of tiles of two heads whose CTAs go from one to the next.
const WALKED: [usize; 2] = [4, 8];
/// Parts of 16 tokens of a CTA.
const MAX_PARTS: usize = 8;
/// Elements of a sample: kernels have 32-bit offsets in it.
pub(super) const MAX_SAMPLE: usize = 1 << 31;
/// Bytes of an element, and elements of a vector of 16 bytes.
pub(super) const ELEMENT: usize = 2;
pub(super) const VECTOR: usize = 16 / ELEMENT;

/// A kernel: all that its text is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// What it computes.
    pub product: Product,
    /// Of all tensors.
    pub element: Element,
    /// Elements of a vector.
    pub(super) dim: usize,
    pub(super) kernel: [usize; MAX_RANK],
    pub(super) causal: [bool; MAX_RANK],
    pub(super) is_strided: bool,
    pub(super) is_dilated: bool,
    /// Whether there is a slowest of three axes.
    pub(super) has_depth: bool,
    pub(super) has_bias: bool,
    /// Heads of rows that share one of tokens.
    pub(super) group: usize,
    /// Heads of a CTA: of rows, or of tokens where these are the result.
    pub(super) heads: usize,
    /// Tokens of a CTA along the two fastest axes, and those of a warp along the fastest.
    pub(super) tile: [usize; 2],
    pub(super) band: usize,
    /// Their counterparts: in shared memory, and those of a warp.
    pub(super) halo: [usize; 2],
    pub(super) span: [usize; 2],
    /// Bytes in which weights are read and written.
    pub(super) word: usize,
    /// Whether the weights of a line of tokens lie without gaps, but for those between rows.
    pub(super) is_together: bool,
    /// Elements from one row of weights to the next: more than its slots where there are gaps.
    pub(super) pitch: usize,
    /// Lines of shared memory, where CTAs go from tile to tile along the slower axis of a plane, and copy what the next one needs while they
    /// compute; 0 where a CTA has one tile.
    pub(super) ring: usize,
}

/// Counterparts of parts and of tiles of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Most that a part has, rounded up.
    span: usize,
    /// Most from the first of a tile to the last that a part of it reads.
    halo: usize,
}

/// What an [`Extent`] is worked out from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cut {
    axis: Axis,
    tile: usize,
    band: usize,
    /// What spans are multiples of.
    unit: usize,
    product: Product,
}

impl Cut {
    /// Kept, as an axis may be long.
    fn extent(self) -> Extent {
        static KNOWN: LazyLock<Mutex<HashMap<Cut, Extent>>> = LazyLock::new(Mutex::default);
        let known = || KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(extent) = known().get(&self) {
            return *extent;
        }
        let extent = self.count();
        known().insert(self, extent);
        extent
    }

    fn count(self) -> Extent {
        let Self { axis, tile, band, unit, product } = self;
        let mut extent = Extent { span: 0, halo: 0 };
        let mut parts = vec![];
        // All groups have as many members as the first or as the last.
        for group in [0, axis.dilation - 1] {
            let (length, _) = axis.group(group);
            let seen = |position: usize| match product {
                Product::Spread => axis.seen_by(group, position.min(length - 1)),
                _ => axis.keys_seen(group, position.min(length - 1)),
            };
            for first in (0..length).step_by(tile) {
                let start = seen(first).start;
                extent.halo = extent.halo.max(seen(first + tile - 1).end - start);
                for part in (first..length.min(first + tile)).step_by(band) {
                    let from = seen(part).start;
                    extent.span = extent.span.max(seen(part + band - 1).end - from);
                    parts.push(from - start);
                }
            }
        }
        extent.span = extent.span.next_multiple_of(unit);
        // Spread's loop over lines ends with those of its part.
        let is_cut_short = product == Product::Spread && unit == 1;
        if let Some(furthest) = parts.into_iter().max().filter(|_| !is_cut_short) {
            extent.halo = extent.halo.max(furthest + extent.span);
        }
        extent
    }
}

impl Schedule {
    /// The kernel for a product of a problem whose weights begin `offset` bytes into their memory, in rows that lie `pitch` elements apart.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn plan(
        problem: &Problem,
        product: Product,
        element: Element,
        has_bias: bool,
        offset: usize,
        pitch: usize,
    ) -> Result<Self, String> {
        if let Some(reason) = unsupported(problem) {
            return Err(reason);
        }
        let heads = match product {
            // Of one group at a time, whose heads are not neighbors.
            Product::Spread if problem.group_size() > 1 => &[1][..],
            _ => &[2, 1],
        };
        if let Some(schedule) =
            Self::walking(problem, product, element, has_bias, offset, pitch, heads)
        {
            return Ok(schedule);
        }
        let [_, y, _] = problem.axes;
        let longest = |axis: &Axis| axis.group(0).0;
        // A line where there are no others, or squares.
        let (tiles, band): (&[[usize; 2]], usize) = match longest(&y) {
            0 | 1 => (&[[1, 128], [1, 64], [1, 32], [1, 16]], 16),
            _ => (&[[8, 16], [16, 8], [8, 8], [4, 8], [2, 8]], 8),
        };
        let mut found: Option<(usize, Self)> = None;
        for &heads in
            heads.iter().filter(|heads| total_heads(problem, product).is_multiple_of(**heads))
        {
            for &tile in tiles {
                if tile[0] * tile[1] / 16 * heads > MAX_PARTS {
                    continue;
                }
                let schedule =
                    Self::of(problem, product, element, has_bias, offset, pitch, heads, tile, band);
                let shared = schedule.shared_memory();
                if schedule.span[0] > MAX_SPAN[0]
                    || schedule.span[1] > MAX_SPAN[1]
                    || shared > MAX_SHARED
                {
                    continue;
                }
                if shared <= GOOD_SHARED {
                    return Ok(schedule);
                }
                if found.is_none_or(|(least, _)| shared < least) {
                    found = Some((shared, schedule));
                }
            }
        }
        let kernel = problem.slot_axes();
        found
            .map(|(_, schedule)| schedule)
            .ok_or_else(|| format!("windows of {kernel:?} are too large"))
    }

    /// A kernel whose CTAs go along the slower axis of planes, if enough of their warps share a multiprocessor. A warp has a part of each tile.
    fn walking(
        problem: &Problem,
        product: Product,
        element: Element,
        has_bias: bool,
        offset: usize,
        pitch: usize,
        heads: &[usize],
    ) -> Option<Self> {
        let [z, y, _] = problem.axes;
        let heads = *heads.iter().find(|h| total_heads(problem, product).is_multiple_of(**h))?;
        // Of one head twice as many lines, for as many warps.
        let tile = [WALKED[0] * 2 / heads, WALKED[1]];
        if z.kernel_size > 1 || y.group(0).0 <= tile[0] {
            return None;
        }
        let mut schedule =
            Self::of(problem, product, element, has_bias, offset, pitch, heads, tile, 8);
        let is_known = match product {
            // Vectors are taken in pieces of 32 elements.
            Product::Dots => problem.head_dim.is_multiple_of(32),
            Product::Sums => schedule.is_pitched() || schedule.is_together,
            // A line of weights stays in shared memory from tile to tile.
            Product::Spread => {
                (schedule.is_pitched() || schedule.is_together) && schedule.group == 1
            }
        };
        if !is_known || schedule.span[0] > MAX_SPAN[0] || schedule.span[1] > MAX_SPAN[1] {
            return None;
        }
        schedule.ring = schedule.lines_of_ring(&y);
        let warps = schedule.ctas_by_memory() * schedule.parts_of_tile();
        (schedule.shared_memory() <= MAX_SHARED && warps >= GOOD_WARPS / 2).then_some(schedule)
    }

    /// Lines from the first that a tile needs to the last of the next one.
    fn lines_of_ring(&self, axis: &Axis) -> usize {
        let mut lines = 0;
        for group in [0, axis.dilation - 1] {
            let (length, _) = axis.group(group);
            let seen = |position: usize| match self.product {
                Product::Spread => axis.seen_by(group, position.min(length - 1)),
                _ => axis.keys_seen(group, position.min(length - 1)),
            };
            // Spread's loop over lines ends with those of its part, that of the others takes a part's whole span.
            let end = |tile: usize| match self.product {
                Product::Spread => seen(tile + self.tile[0] - 1).end,
                _ => seen(tile + self.tile[0] - 16 / self.band).start + self.span[0],
            };
            let start = |tile: usize| seen(tile).start;
            for tile in (0..length).step_by(self.tile[0]) {
                let next = if tile + self.tile[0] < length { tile + self.tile[0] } else { tile };
                lines = lines.max(end(next) - start(tile));
            }
        }
        lines
    }

    #[allow(clippy::too_many_arguments)]
    fn of(
        problem: &Problem,
        product: Product,
        element: Element,
        has_bias: bool,
        offset: usize,
        pitch: usize,
        heads: usize,
        tile: [usize; 2],
        band: usize,
    ) -> Self {
        let [_, y, x] = problem.axes;
        // Blocks of 8 columns; sums take two at a time.
        let unit = if product == Product::Dots { 8 } else { 16 };
        let along_y = Cut { axis: y, tile: tile[0], band: 16 / band, unit: 1, product }.extent();
        let along_x = Cut { axis: x, tile: tile[1], band, unit, product }.extent();
        let kernel = problem.slot_axes();
        let is_together = kernel[0] == 1 && x.dilation == 1 && heads == problem.heads;
        let slots = kernel[1] * kernel[2];
        // What weights begin at multiples of, in bytes, and what as many of them as there are is a multiple of.
        let row = 2 * heads * slots;
        let places = match (is_together, product) {
            // In vectors, wherever a line begins.
            (true, Product::Spread) => vec![],
            (true, _) => vec![row * tile[1], row * (x.queries % tile[1]), row * x.queries],
            (false, _) if kernel[0] > 1 => vec![2 * slots],
            (false, _) => vec![row],
        };
        let is_pitched = pitch != kernel.iter().product::<usize>();
        let is_shifted = is_together && !is_pitched && product == Product::Spread;
        let offset = if is_shifted { 0 } else { offset };
        let is_word = |word: &usize| places.iter().chain([&offset]).all(|place| place % word == 0);
        let word = match is_pitched {
            true => 16,
            false => [16, 8, 4].into_iter().find(is_word).unwrap_or(2),
        };
        let halo_x = along_x.halo.next_multiple_of(8);
        Self {
            product,
            element,
            dim: problem.head_dim,
            kernel,
            causal: problem.axes.map(|axis| axis.is_causal),
            is_strided: problem.axes.iter().any(|axis| axis.stride > 1),
            is_dilated: problem.axes.iter().any(|axis| axis.dilation > 1),
            has_depth: problem.axes[0].queries > 1,
            has_bias,
            group: problem.group_size(),
            heads,
            tile,
            band,
            halo: [along_y.halo, halo_x],
            span: [along_y.span, along_x.span],
            word,
            is_together,
            pitch,
            ring: 0,
        }
    }

    /// Parts of 16 tokens of a tile.
    fn parts_of_tile(&self) -> usize {
        self.tile[0] * self.tile[1] / 16 * self.heads
    }

    /// Threads of a CTA. Where enough CTAs share a multiprocessor, a warp has two parts, for which it works out but once where they are,
    /// unless it keeps their sums from one position along the slowest axis to the next, or from one head to the next.
    pub(super) fn threads(&self) -> usize {
        let parts = self.parts_of_tile();
        if self.is_walking() {
            return 32 * parts;
        }
        let is_once = self.kernel[0] == 1 && (self.product != Product::Spread || self.group == 1);
        let has_two = is_once && parts >= 8 && self.ctas_by_memory() * parts / 2 >= GOOD_WARPS;
        32 * if has_two { parts / 2 } else { parts }
    }

    /// CTAs whose shared memory a multiprocessor has.
    fn ctas_by_memory(&self) -> usize {
        MULTIPROCESSOR / (self.shared_memory() + RESERVED)
    }

    /// Whether lines of weights move in whole vectors wherever they begin.
    pub(super) fn is_shifted(&self) -> bool {
        self.is_together && !self.is_pitched() && self.product == Product::Spread
    }

    /// Whether CTAs go from tile to tile.
    pub(super) fn is_walking(&self) -> bool {
        self.ring > 0
    }

    /// Whether there are gaps between rows of weights.
    pub(super) fn is_pitched(&self) -> bool {
        self.pitch != self.kernel.iter().product::<usize>()
    }

    /// Elements from one row of weights to the next in shared memory. Of rows with gaps, whole vectors are there, an odd number of them, so
    /// that neighbors lie in different banks.
    pub(super) fn row(&self) -> usize {
        let [_, y, x] = self.kernel;
        match self.is_pitched() {
            true => ((y * x).div_ceil(VECTOR) | 1) * VECTOR,
            false => y * x,
        }
    }

    /// CTAs that are to share a multiprocessor: a bound on the registers of a thread.
    pub(super) fn ctas_at_once(&self) -> usize {
        let registers = if self.dim <= 64 { 96 } else { 160 };
        let by_registers = REGISTERS / (registers * self.threads());
        // More would go shorter ways, each of which begins with a halo of its own.
        let enough = if self.is_walking() { GOOD_WARPS / self.parts_of_tile() } else { 16 };
        self.ctas_by_memory().min(by_registers).min(enough).clamp(1, 16)
    }

    /// Bytes of shared memory: vectors of the halo, weights of queries, and as many as are read behind them for nothing.
    pub(super) fn shared_memory(&self) -> usize {
        let halo = self.halo[0] * self.halo[1] * self.heads;
        let [_, kernel_y, kernel_x] = self.kernel;
        let slots = self.heads * self.row();
        let behind = (self.span[0] + kernel_y + 3) * kernel_x + self.span[1] + 16;
        let vector = 2 * self.dim;
        if self.is_walking() {
            let tile = 2 * self.tile[0] * self.tile[1] * slots;
            let line = |gap: usize| self.halo[1] * (self.heads * vector + gap);
            let results = self.parts_of_tile() * 16 * (vector + 16);
            return match self.product {
                Product::Dots => self.ring * line(0) + 2 * tile.next_multiple_of(16),
                Product::Sums => {
                    let ring = (self.ring * line(16) + 2 * behind).next_multiple_of(16);
                    ring + 2 * (tile + 2 * behind).next_multiple_of(16) + results
                }
                Product::Spread => {
                    let weights = 2 * self.halo[1] * slots;
                    let weights = match self.is_shifted() {
                        true => weights.next_multiple_of(16) + 16,
                        false => weights,
                    };
                    let step = (line(16) + weights).next_multiple_of(16);
                    self.ring * step + (2 * behind).next_multiple_of(16) + results
                }
            };
        }
        let weights = match self.product {
            Product::Spread if self.is_shifted() => {
                self.halo[0] * ((2 * self.halo[1] * slots).next_multiple_of(16) + 16)
            }
            Product::Spread => 2 * self.halo[0] * self.halo[1] * slots,
            _ => 2 * self.tile[0] * self.tile[1] * slots,
        };
        halo * (vector + 16) + weights + 2 * behind
    }
}

/// Heads of a product's tiles.
pub(super) fn total_heads(problem: &Problem, product: Product) -> usize {
    match product {
        Product::Spread => problem.heads_kv,
        _ => problem.heads,
    }
}

/// Why kernels cannot compute a problem; `None` if they can.
fn unsupported(problem: &Problem) -> Option<String> {
    let dim = problem.head_dim;
    if problem.additional > 0 {
        return Some("there are additional tokens".into());
    }
    if dim == 0 || !dim.is_multiple_of(16) || dim > MAX_DIM {
        return Some(format!("head_dim is {dim}, not a multiple of 16 up to {MAX_DIM}"));
    }
    if problem.has_origin() || problem.axes.iter().any(|axis| axis.queries != axis.keys) {
        return Some("its queries stand elsewhere than keys of the same number".into());
    }
    if problem.batch * problem.queries() * problem.heads >= 1 << 30 {
        return Some("there are 2^30 or more rows of queries".into());
    }
    if problem.weights() / problem.batch.max(1) >= MAX_SAMPLE {
        return Some("a sample has 2^31 or more weights".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighborhoods_have_kernels() {
        let side = Axis::neighborhood(56, 7);
        let problem = Problem::new([side, side], 2, 32).with_batch(64);
        for product in [Product::Dots, Product::Sums, Product::Spread] {
            let schedule = Schedule::plan(&problem, product, Element::Bf16, false, 0, 49);
            let schedule = schedule.expect("one");
            assert!(schedule.is_together, "{schedule:?}");
            // A key of the border has more visitors.
            assert_eq!(schedule.span, [if product == Product::Spread { 11 } else { 8 }, 16]);
            assert_eq!((schedule.tile, schedule.halo[1]), ([4, 8], 16));
            assert_eq!(schedule.ring, if product == Product::Spread { 15 } else { 14 });
            assert_eq!(schedule.ctas_at_once(), if product == Product::Spread { 2 } else { 4 });
            assert_eq!(schedule.word, 16);
        }
    }

    /// Whatever a part of a tile reads is in its halo, and what it sees among what it reads.
    #[test]
    fn halos_hold_what_is_seen() {
        for (length, kernel_size, stride, dilation) in [
            (22, 7, 1, 1),
            (14, 7, 1, 1),
            (40, 13, 5, 2),
            (9, 9, 1, 1),
            (31, 4, 3, 3),
            (5, 1, 1, 2),
        ] {
            for is_causal in [false, true] {
                let axis = Axis::neighborhood(length, kernel_size)
                    .with_stride(stride)
                    .with_dilation(dilation)
                    .with_causal(is_causal);
                for (product, tile, band) in
                    [(Product::Dots, 16, 8), (Product::Spread, 8, 8), (Product::Spread, 8, 2)]
                {
                    let extent = Cut { axis, tile, band, unit: 8, product }.extent();
                    for token in 0..length {
                        let (group, position) = (token % dilation, token / dilation);
                        let seen = |position| match product {
                            Product::Spread => axis.seen_by(group, position),
                            _ => axis.keys_seen(group, position),
                        };
                        let [part, first] =
                            [band, tile].map(|size| seen(position / size * size).start);
                        let at = seen(position);
                        assert!(at.start >= part && at.end <= part + extent.span, "{axis:?}");
                        assert!(part - first + extent.span <= extent.halo, "{axis:?}");
                    }
                }
            }
        }
    }
}
