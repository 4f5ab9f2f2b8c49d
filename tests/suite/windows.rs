//! The window arithmetic of the kernels against 490 axes of golden windows.

use std::io::Read;

use burn_natten_kernels::Axis;
use serde::Deserialize;

use crate::support::problem;

#[derive(Deserialize)]
struct Golden {
    length: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    causal: bool,
    windows: Vec<[usize; 3]>,
}

impl Golden {
    fn keys(&self, query: usize) -> Vec<usize> {
        let [start, stop, step] = self.windows[query];
        (start..stop).step_by(step).collect()
    }

    fn axis(&self) -> Axis {
        Axis::neighborhood(self.length, self.kernel)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_causal(self.causal)
    }

    fn name(&self) -> String {
        let Self { length, kernel, stride, dilation, causal, .. } = self;
        format!("length {length} kernel {kernel} stride {stride} dilation {dilation} {causal}")
    }
}

fn golden() -> Vec<Golden> {
    let mut json = String::new();
    flate2::read::GzDecoder::new(include_bytes!("../golden/masks.json.gz").as_slice())
        .read_to_string(&mut json)
        .expect("masks.json.gz is gzip");
    let axes: Vec<Golden> = serde_json::from_str(&json).expect("masks.json is as described");
    assert_eq!(axes.len(), 490);
    axes
}

/// The indices of an interval of a dilation group.
fn indices((first, count): (usize, usize), dilation: usize) -> Vec<usize> {
    (0..count).map(|step| first + step * dilation).collect()
}

#[test]
fn windows_are_the_golden_ones() {
    for golden in golden() {
        let axis = golden.axis();
        for query in 0..golden.length {
            let keys = indices(axis.window(query), axis.dilation);
            assert_eq!(keys, golden.keys(query), "{} query {query}", golden.name());
        }
    }
}

#[test]
fn visitors_are_the_inverse_of_the_golden_windows() {
    for golden in golden() {
        let axis = golden.axis();
        let mut expected = vec![vec![]; golden.length];
        for query in 0..golden.length {
            for key in golden.keys(query) {
                expected[key].push(query);
            }
        }
        for (key, expected) in expected.into_iter().enumerate() {
            let visitors = indices(axis.visitors(key), axis.dilation);
            assert_eq!(visitors, expected, "{} key {key}", golden.name());
        }
    }
}

#[test]
fn the_oracle_sees_the_golden_windows() {
    for golden in golden() {
        let axis = problem::Axis::Window {
            length: golden.length,
            kernel_size: golden.kernel,
            stride: golden.stride,
            dilation: golden.dilation,
            is_causal: golden.causal,
        };
        for query in 0..golden.length {
            let sees = |&key: &usize| axis.sees(query, key);
            let keys: Vec<usize> = (0..golden.length).filter(sees).collect();
            assert_eq!(keys, golden.keys(query), "{} query {query}", golden.name());
        }
    }
}

#[test]
fn windows_and_visitors_of_dense_axes_are_inverse() {
    for (queries, keys) in [(1, 1), (1, 9), (9, 1), (5, 8), (8, 5), (7, 7)] {
        for is_causal in [false, true] {
            let axis = Axis::dense(queries, keys, is_causal);
            for query in 0..queries {
                let window = indices(axis.window(query), 1);
                // Aligned at the end.
                let expected: Vec<_> =
                    (0..keys).filter(|key| !is_causal || *key + queries <= query + keys).collect();
                assert_eq!(window, expected, "{axis:?} query {query}");
            }
            for key in 0..keys {
                let visitors = indices(axis.visitors(key), 1);
                let expected: Vec<_> = (0..queries)
                    .filter(|query| !is_causal || key + queries <= *query + keys)
                    .collect();
                assert_eq!(visitors, expected, "{axis:?} key {key}");
            }
        }
    }
}
