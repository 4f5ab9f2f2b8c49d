use super::*;

/// What every query of an axis sees, and what sees every key, agree with `expected`.
fn check(axis: Axis, expected: impl Fn(usize, usize) -> bool) {
    for query in 0..axis.queries {
        for key in 0..axis.keys {
            let holds = |(first, count): (usize, usize), at: usize| {
                (0..count).any(|i| first + i * axis.dilation == at)
            };
            let case = format!("{axis:?}, query {query}, key {key}");
            assert_eq!(holds(axis.window(query), key), expected(query, key), "window: {case}");
            assert_eq!(holds(axis.visitors(key), query), expected(query, key), "back: {case}");
        }
    }
}

#[test]
fn causal_queries_see_the_keys_up_to_where_they_stand() {
    for queries in 1..7 {
        for keys in 1..7 {
            for origin in -8..9 {
                let axis = Axis::dense(queries, keys, true).with_origin(origin);
                check(axis, |query, key| key as isize <= query as isize + origin);
            }
            let axis = Axis::dense(queries, keys, true);
            check(axis, |query, key| key + queries <= query + keys);
            check(Axis::dense(queries, keys, false).with_origin(-3), |_, _| true);
        }
    }
}

#[test]
fn where_everything_is_seen_queries_may_stand_anywhere() {
    for origin in -8..9 {
        let axis = Axis::dense(5, 4, false).with_origin(origin);
        check(axis, |_, _| true);
        assert!(!axis.has_origin(), "{axis:?}");
    }
}

/// A part of the queries of a longer axis, with all of its keys.
#[test]
fn queries_may_be_a_part_of_the_axis() {
    for (kernel_size, stride, dilation, is_causal) in
        [(3, 1, 1, false), (4, 3, 1, true), (3, 2, 2, false), (2, 2, 3, true), (5, 2, 2, true)]
    {
        let whole = Axis::neighborhood(17, kernel_size)
            .with_stride(stride)
            .with_dilation(dilation)
            .with_causal(is_causal);
        for origin in (0..17).step_by(dilation) {
            for queries in 1..=17 - origin {
                let part = Axis { queries, ..whole.with_origin(origin as isize) };
                check(part, |query, key| {
                    let (first, count) = whole.window(query + origin);
                    (0..count).any(|i| first + i * dilation == key)
                });
            }
        }
    }
}

#[test]
fn what_is_not_given_has_its_default() {
    let axis = Axis::neighborhood(9, 3);
    let problem = Problem::new([axis], 6, 16);
    assert_eq!((problem.batch, problem.additional, problem.scale), (1, 0, 0.25));
    assert_eq!((problem.heads_kv, problem.head_dim_v), (6, 16));
    assert_eq!(problem.axes, [Axis::UNIT, Axis::UNIT, axis]);
    let other = problem.with_axes([axis; 3]).with_heads(12).with_head_dim_v(8);
    assert_eq!((other.heads, other.heads_kv, other.head_dim, other.head_dim_v), (12, 6, 16, 8));
    assert_eq!((other.axes, other.scale), ([axis; 3], 0.25));
}

#[test]
fn kernels_name_the_slowest_axis_z() {
    assert_eq!(axes_suffix("causal", [true, false, false]), "_causal_z");
    assert_eq!(axes_suffix("causal", [true, false, true]), "_causal_zx");
    assert_eq!(axes_suffix("causal", [false; 3]), "");
}

#[test]
#[should_panic = "4 axes; a problem has 1 to 3"]
fn a_fourth_axis_is_refused() {
    Problem::new([Axis::UNIT; 4], 1, 8);
}

#[test]
fn pairs_count_every_visible_key() {
    let axis = |length, kernel_size, stride, dilation, is_causal| {
        Axis::neighborhood(length, kernel_size)
            .with_stride(stride)
            .with_dilation(dilation)
            .with_causal(is_causal)
    };
    let problem = Problem::new([axis(9, 3, 2, 2, true), axis(7, 3, 1, 2, false)], 4, 8)
        .with_batch(2)
        .with_heads_kv(2)
        .with_head_dim_v(4)
        .with_additional(3);
    let mut count = 0;
    for query in 0..problem.queries() {
        let [_, y, x] = problem.query_coordinates(query);
        for key in 0..problem.keys() {
            let [_, ky, kx] = problem.key_coordinates(key);
            let visible = |axis: &Axis, query: usize, key: usize| {
                let (first, size) = axis.window(query);
                (0..size).any(|i| first + i * axis.dilation == key)
            };
            count +=
                u64::from(visible(&problem.axes[1], y, ky) && visible(&problem.axes[2], x, kx));
        }
    }
    assert_eq!(problem.pairs(), count + 63 * 3);
}
