use proptest::prelude::*;

use super::*;

/// Any axis, of windows or dense.
pub(in super::super) fn axis() -> impl Strategy<Value = Axis> {
    let windows = (1..40usize, 1..9usize, 1..9usize, 1..4usize, any::<bool>()).prop_map(
        |(length, size, stride, dilation, is_causal)| {
            let dilation = dilation.min(length);
            let size = size.min(length / dilation);
            Axis::neighborhood(length, size)
                .with_stride(stride.min(size))
                .with_dilation(dilation)
                .with_causal(is_causal)
        },
    );
    let dense = (1..20usize, 1..20usize, any::<bool>())
        .prop_map(|(queries, keys, is_causal)| Axis::dense(queries, keys, is_causal));
    prop_oneof![4 => windows, 1 => dense]
}

fn strips(axes: [Axis; MAX_RANK], height: usize) -> (Strips, Grid, Grid) {
    let queries = Grid::new(axes.map(|axis| axis.queries), axes[2].dilation);
    let keys = Grid::new(axes.map(|axis| axis.keys), axes[2].dilation);
    (Strips::of_height(&axes, &queries, height), queries, keys)
}

/// What the queries of a strip see: lines of keys, and positions in their dilation group.
fn keys(
    axes: &[Axis; MAX_RANK],
    strip: &Strip,
    queries: &Grid,
    keys: &Grid,
) -> Vec<(usize, usize, usize)> {
    let mut all = Vec::new();
    for row in strip.rows.clone() {
        let [z, y] = queries.outer_at(row);
        let [z, y] = [axes[0].window(z), axes[1].window(y)];
        for block in &strip.blocks {
            for position in block.first..block.first + block.live {
                let seen = axes[2].keys_seen(block.group, position);
                for (i, j) in (0..z.1).flat_map(|i| (0..y.1).map(move |j| (i, j))) {
                    let line = (z.0 + i * axes[0].dilation) * keys.outer[1];
                    let line = line + y.0 + j * axes[1].dilation;
                    all.extend(seen.clone().map(|position| (line, block.group, position)));
                }
            }
        }
    }
    all
}

/// Every query has a strip, and no key is seen by two strips of a phase.
fn check(axes: [Axis; MAX_RANK], height: usize) {
    let (strips, queries, key_grid) = strips(axes, height);
    let mut seen = std::collections::HashSet::new();
    for strip in &strips.all {
        for row in strip.rows.clone() {
            for block in &strip.blocks {
                for position in block.first..block.first + block.live {
                    assert!(seen.insert((row, block.group, position)), "a query in two strips");
                }
            }
        }
    }
    assert_eq!(seen.len(), queries.rows() * queries.length, "every query has a strip");
    for phase in 0..2 {
        let mut owners = std::collections::HashMap::new();
        for (number, strip) in strips.all.iter().enumerate().skip(phase).step_by(2) {
            for key in keys(&axes, strip, &queries, &key_grid) {
                let owner = owners.entry(key).or_insert(number);
                assert_eq!(*owner, number, "{key:?} in strips of phase {phase}: {axes:?}");
            }
        }
    }
    if strips.have_lines() {
        check_lines(&axes, &strips, &queries, &key_grid);
    }
}

/// The lines that a line of queries sees are in use, and come in order.
fn check_lines(axes: &[Axis; MAX_RANK], strips: &Strips, queries: &Grid, key_grid: &Grid) {
    for strip in &strips.all {
        let lines = strip.keys.as_ref().expect("lines of keys");
        let mut end = lines.first();
        for row in strip.rows.clone() {
            assert!(lines.end(row) >= end || end == usize::MAX, "a strip goes forward");
            end = lines.end(row);
            let in_use: Vec<usize> = (end.saturating_sub(lines.in_use)..end)
                .flat_map(|index| strips.lines(key_grid, index))
                .collect();
            let line = Strip { rows: row..row + 1, blocks: strip.blocks.clone(), keys: None };
            for (row, ..) in keys(axes, &line, queries, key_grid) {
                assert!(in_use.contains(&row), "line {row} of {in_use:?}: {axes:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn strips_of_a_phase_see_no_key_in_common(
        slow in axis(),
        axis in axis(),
        height in 1..6usize,
        rank in 1..=MAX_RANK,
    ) {
        let short = Axis::neighborhood(5, 3);
        check(
            match rank {
                1 => [Axis::UNIT, Axis::UNIT, axis],
                2 => [Axis::UNIT, slow, axis],
                _ => [slow, short, axis],
            },
            height,
        );
    }
}

#[test]
fn strips_are_as_high_as_windows_reach() {
    let side = Axis::neighborhood(40, 7);
    let (image, ..) = strips([Axis::UNIT, side, side], 1);
    let rows: Vec<_> = image.all[2..5].iter().map(|strip| strip.rows.clone()).collect();
    assert_eq!(rows, [10..16, 16..22, 22..28]);
    let (dense, ..) = strips([Axis::UNIT, Axis::UNIT, Axis::dense(64, 64, false)], 1);
    assert_eq!(dense.all.len(), 2);
}
