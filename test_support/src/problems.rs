//! Problems that the tests of both passes share.

use burn_natten_kernels::native::sm90::Mask;
use burn_natten_kernels::{Axis, Problem};

use crate::{axis, problem};

/// Which problems are taken where kernels take long to compile, so that several processes share them.
pub fn seed() -> usize {
    std::env::var("BURN_NATTEN_TEST_SEED").map_or(0, |seed| seed.parse().expect("a number"))
}

/// All of a list, or one of it where there is a seed other than zero.
pub fn share<T>(list: Vec<T>) -> Vec<T> {
    let (seed, length) = (seed(), list.len());
    let chosen = |(index, _): &(usize, T)| seed == 0 || (seed - 1) % length == *index;
    list.into_iter().enumerate().filter(chosen).map(|(_, item)| item).collect()
}

/// A test for each list of problems, which hands it to a function of the module.
#[macro_export]
macro_rules! tests_of {
    ($check:ident, $module:ident: $($list:ident),* $(,)?) => {
        $(
            #[test]
            fn $list() {
                $check($crate::problems::$module::$list());
            }
        )*
    };
}

/// Tests of [`edges`], by a function of `Vec<Problem>`.
#[macro_export]
macro_rules! test_edges {
    ($check:ident) => {
        $crate::tests_of!(
            $check,
            edges: lengths_around_tiles,
            single_queries_and_keys,
            queries_and_keys_of_different_number,
            windows_of_a_whole_axis,
            numbers_of_heads,
            numbers_of_samples,
            vectors_of_every_length,
            dilations,
        );
    };
}

/// Tests of [`isolated`], by a function of [`isolated::Named`].
#[macro_export]
macro_rules! test_isolated {
    ($check:ident) => {
        $crate::tests_of!(
            $check,
            isolated: one_axis,
            two_axes,
            three_axes,
            with_additional_tokens_and_shared_keys,
        );
    };
}

/// Tests of [`samples`], by a function of [`samples::Masked`].
#[macro_export]
macro_rules! test_samples {
    ($check:ident) => {
        $crate::tests_of!(
            $check,
            samples: whole_blocks,
            by_position,
            one_hot,
            additional_tokens,
            several_launches,
            wide_heads,
        );
    };
}

/// Sizes at which something begins, ends or does not happen at all.
pub mod edges {
    use super::*;

    const AROUND_TILES: [usize; 9] = [1, 2, 63, 64, 65, 127, 128, 129, 193];

    pub fn lengths_around_tiles() -> Vec<Problem> {
        let of = |length: usize| {
            [
                problem(&[Axis::dense(length, length, false)], 64),
                problem(&[Axis::dense(length, length, true)], 128),
                problem(&[axis(length, length.div_ceil(2), 1, 1, false)], 64),
            ]
        };
        AROUND_TILES.into_iter().flat_map(of).collect()
    }

    pub fn single_queries_and_keys() -> Vec<Problem> {
        vec![
            problem(&[Axis::dense(1, 1, false)], 64),
            problem(&[Axis::dense(1, 200, false)], 64),
            problem(&[Axis::dense(200, 1, false)], 64),
            problem(&[Axis::dense(200, 1, true).with_origin(0)], 128),
            problem(&[Axis::dense(1, 1, false)], 64).with_additional(1),
        ]
    }

    pub fn queries_and_keys_of_different_number() -> Vec<Problem> {
        let of = |(queries, keys)| {
            [true, false].map(|is_causal| {
                problem(&[Axis::dense(queries, keys, is_causal).with_origin(0)], 64)
            })
        };
        [(300, 70), (70, 300), (129, 128), (128, 129)].into_iter().flat_map(of).collect()
    }

    pub fn windows_of_a_whole_axis() -> Vec<Problem> {
        let space = [axis(4, 4, 4, 1, false), axis(9, 9, 1, 1, true), axis(8, 3, 1, 1, false)];
        vec![
            problem(&[axis(100, 50, 1, 2, false)], 64),
            problem(&[axis(12, 12, 1, 1, false), axis(20, 20, 1, 1, false)], 64),
            problem(&[axis(12, 12, 1, 1, true), axis(20, 5, 1, 1, false)], 128),
            problem(&space, 64),
            problem(&[axis(16, 16, 16, 1, false), axis(64, 8, 8, 1, false)], 128),
        ]
    }

    pub fn numbers_of_heads() -> Vec<Problem> {
        let plane = [axis(9, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
        let heads = |heads, heads_kv| problem(&plane, 64).with_heads(heads).with_heads_kv(heads_kv);
        let line = problem(&[axis(150, 33, 1, 1, true)], 128);
        vec![
            heads(1, 1),
            heads(48, 3),
            heads(48, 48),
            heads(7, 1),
            line.with_heads(48).with_heads_kv(3),
        ]
    }

    pub fn numbers_of_samples() -> Vec<Problem> {
        let space = [axis(5, 3, 1, 1, false), axis(7, 4, 1, 1, false), axis(6, 3, 1, 1, true)];
        let of = |batch| problem(&space, 64).with_batch(batch);
        vec![of(1), of(3), of(7), problem(&space[1..], 32).with_batch(33)]
    }

    pub fn vectors_of_every_length() -> Vec<Problem> {
        let plane = [axis(9, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
        let dims =
            [(8, 8), (8, 256), (256, 8), (248, 248), (256, 256), (16, 24), (120, 136), (72, 8)];
        let of = |(head_dim, head_dim_v)| {
            [&plane[..], &plane[1..]]
                .map(|axes| problem(axes, head_dim).with_head_dim_v(head_dim_v))
        };
        dims.into_iter().flat_map(of).collect()
    }

    /// Dilations around what TMA steps over, along each axis; groups of unequal length.
    pub fn dilations() -> Vec<Problem> {
        let short = axis(9, 3, 1, 1, false);
        let of = |dilation| {
            let long = |is_causal| axis(3 * dilation + 1, 3, 1, dilation, is_causal);
            [
                problem(&[axis(8 * dilation + 3, 7, 1, dilation, false)], 64),
                problem(&[short, long(true)], 64),
                problem(&[long(false), short], 64),
            ]
        };
        // Samples of groups that are launched alone have to begin at a multiple of the dilation.
        let space =
            |length| problem(&[axis(length, 3, 1, 9, false), axis(5, 3, 1, 1, false), short], 64);
        let alone = [space(36), space(31).with_batch(1), space(36).with_additional(5)];
        [2, 7, 8, 9].into_iter().flat_map(of).chain(alone).collect()
    }
}

/// Problems with a name, for what is not finite and has to stay where it is.
pub mod isolated {
    use super::*;

    pub type Named = Vec<(&'static str, Problem)>;

    pub fn one_axis() -> Named {
        vec![
            ("window", problem(&[axis(203, 21, 1, 1, false)], 64)),
            ("causal window", problem(&[axis(203, 21, 1, 1, true)], 64)),
            ("dense causal", problem(&[Axis::dense(150, 150, true)], 128)),
            ("dilated", problem(&[axis(203, 9, 3, 5, false)], 32)),
            ("launched by group", problem(&[axis(203, 9, 3, 11, true)], 64)),
        ]
    }

    pub fn two_axes() -> Named {
        let window = [axis(13, 5, 1, 1, false), axis(19, 7, 1, 1, false)];
        let causal = [axis(13, 5, 2, 1, true), axis(19, 7, 1, 1, false)];
        let dilated = [axis(13, 3, 1, 2, false), axis(19, 4, 1, 3, true)];
        vec![
            ("window", problem(&window, 64)),
            ("causal", problem(&causal, 128)),
            ("dilated", problem(&dilated, 64)),
        ]
    }

    /// Five is no multiple of a tile: boxes of the first sample run on into the second.
    const WINDOW: [Axis; 3] = [side(5, 3), side(9, 4), side(10, 5)];

    const fn side(length: usize, kernel_size: usize) -> Axis {
        Axis::neighborhood(length, kernel_size)
    }

    pub fn three_axes() -> Named {
        let causal = [axis(5, 3, 1, 1, true), axis(7, 4, 2, 1, false), axis(10, 5, 1, 1, true)];
        let dilated = [axis(5, 2, 1, 2, false), axis(9, 3, 1, 3, false), axis(10, 5, 1, 2, true)];
        vec![
            ("window", problem(&WINDOW, 64)),
            ("causal", problem(&causal, 128)),
            ("dilated", problem(&dilated, 64)),
        ]
    }

    pub fn with_additional_tokens_and_shared_keys() -> Named {
        let line = [axis(203, 21, 1, 1, true)];
        [(&WINDOW[..], 64), (&WINDOW[1..], 128), (&line[..], 64)]
            .map(|(axes, dim)| ("additional", problem(axes, dim).with_heads(4).with_additional(70)))
            .to_vec()
    }
}

/// A few tiny launches of every kind, for compute-sanitizer, which slows kernels down hundredfold.
pub mod samples {
    use super::*;

    /// Problems of one sample with one head, and how they are masked.
    pub type Masked = Vec<(Problem, Mask)>;

    fn masked(axes: &[Axis], dim: usize, mask: Mask) -> (Problem, Mask) {
        (problem(axes, dim).with_batch(1).with_heads(1).with_heads_kv(1), mask)
    }

    pub fn whole_blocks() -> Masked {
        vec![masked(&[Axis::dense(128, 256, false)], 64, Mask::None)]
    }

    pub fn by_position() -> Masked {
        vec![
            masked(&[axis(100, 9, 1, 1, false)], 64, Mask::Linear),
            masked(&[axis(70, 9, 2, 1, true)], 128, Mask::Linear),
        ]
    }

    pub fn one_hot() -> Masked {
        let plane = [axis(9, 3, 1, 1, false), axis(11, 5, 1, 1, true)];
        let space = [axis(3, 2, 1, 1, false), axis(5, 3, 1, 1, false), axis(6, 3, 1, 2, false)];
        vec![masked(&plane, 64, Mask::OneHot), masked(&space, 128, Mask::OneHot)]
    }

    pub fn additional_tokens() -> Masked {
        let plane = [axis(9, 3, 1, 1, false), axis(11, 5, 1, 1, false)];
        let (problem, mask) = masked(&plane, 64, Mask::OneHot);
        vec![(problem.with_additional(70), mask)]
    }

    /// A dilation beyond what TMA steps over: nine launches.
    pub fn several_launches() -> Masked {
        vec![masked(&[axis(60, 5, 1, 9, false)], 64, Mask::Linear)]
    }

    pub fn wide_heads() -> Masked {
        vec![masked(&[axis(70, 9, 1, 1, false)], 256, Mask::Linear)]
    }
}

/// Problems of every kind, to be run again and again.
pub fn repeated() -> Vec<Problem> {
    let plane = [axis(37, 9, 1, 1, false), axis(50, 13, 1, 1, true)];
    let space = [axis(9, 5, 1, 1, false), axis(18, 7, 2, 1, false), axis(21, 5, 1, 2, false)];
    vec![
        problem(&[Axis::dense(1000, 1000, true)], 128),
        problem(&plane, 64),
        problem(&plane, 64).with_heads(8),
        problem(&space, 64).with_heads(6).with_additional(90),
        problem(&space, 128),
        problem(&[axis(999, 31, 1, 17, false)], 256),
    ]
}
