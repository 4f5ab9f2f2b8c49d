//! Native sparse attention of one more token for each sequence, in `f64`, and problems of it.

mod appended;

use burn_natten_kernels::native::decode::{Branches, Decoding, Inputs, Outputs};
use burn_natten_kernels::sparse::Selection;
use burn_natten_kernels::{KernelError, KeyValue, Shape, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::blocks::{Layout, upload_lists, view};
use crate::compare::half_ulp;
use crate::format::{F32, Format};
use crate::selection::{Tensors, reference};

pub use appended::{Own, check_appended};

/// Inputs.
#[derive(Clone)]
pub struct Data {
    pub query: Vec<f64>,
    pub gates: Vec<f64>,
    /// Keys and values of each branch.
    pub tokens: [[Vec<f64>; 2]; 3],
}

/// What a launch gives, without the lists' gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    pub out: Vec<f64>,
    pub outs: [Vec<f64>; 3],
    pub logsumexps: [Vec<f64>; 3],
    pub lists: Vec<Vec<i32>>,
}

/// Tokens of each branch.
fn counts(of: &Decoding) -> [usize; 3] {
    [of.selection.compressed(), of.selection.tokens, of.window_tokens]
}

/// Shapes of the query, the gates, and keys and values of each branch.
fn shapes(of: &Decoding) -> (Shape, Shape, [[Shape; 2]; 3]) {
    let Selection { heads, heads_kv, head_dim, .. } = of.selection;
    let tokens = |count| [head_dim, of.head_dim_v].map(|dim| of.shape(count, heads_kv, dim));
    (of.shape(1, heads, head_dim), of.shape(1, heads, 3), counts(of).map(tokens))
}

impl Data {
    pub fn random(of: &Decoding, seed: u64, format: Format) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut values = |shape: Shape| -> Vec<f64> {
            let count = shape.elements();
            (0..count).map(|_| (format.round)(rng.random_range(-2.0..2.0))).collect()
        };
        let (query, gates, tokens) = shapes(of);
        Self {
            query: values(query),
            gates: values(gates),
            tokens: tokens.map(|both| both.map(&mut values)),
        }
    }
}

/// Tensors of a device that lie so.
pub fn upload(
    client: &Client,
    of: &Decoding,
    data: &Data,
    format: Format,
    layout: Layout,
) -> Inputs<Strided> {
    let (query, gates, tokens) = shapes(of);
    let up = |values: &[f64], shape| view(client, format, values, shape, layout);
    let mut branches = data.tokens.iter().zip(tokens).map(|([key, value], [of_key, of_value])| {
        KeyValue { key: up(key, of_key), value: up(value, of_value) }
    });
    let mut next = || branches.next().expect("three branches");
    let tokens = Branches { compressed: next(), selected: next(), window: next() };
    Inputs { query: up(&data.query, query), gates: up(&data.gates, gates), tokens, new: None }
}

/// Runs a launch on tensors that lie so, with poison wherever it writes.
pub fn run(
    client: &Client,
    of: &Decoding,
    data: &Data,
    (format, layout): (Format, Layout),
    launch: impl FnOnce(&Inputs<Strided>, &Outputs<Handle>) -> Result<(), KernelError>,
) -> Results {
    let inputs = upload(client, of, data, format, layout);
    run_on(client, of, format, &inputs, launch)
}

/// The same on tensors that are there.
pub fn run_on(
    client: &Client,
    of: &Decoding,
    format: Format,
    inputs: &Inputs<Strided>,
    launch: impl FnOnce(&Inputs<Strided>, &Outputs<Handle>) -> Result<(), KernelError>,
) -> Results {
    let rows = of.selection.batch * of.selection.heads;
    let entries = of.selection.batch * of.selection.heads_kv * of.selection.num_selected;
    let out = || format.poisoned(client, rows * of.head_dim_v);
    let lse = || F32.poisoned(client, rows);
    let outputs = Outputs {
        out: out(),
        outs: Branches { compressed: out(), selected: out(), window: out() },
        logsumexps: Branches { compressed: lse(), selected: lse(), window: lse() },
        lists: upload_lists(client, &vec![i32::MAX; entries]),
    };
    launch(inputs, &outputs).expect("launched");
    let down = |handle: &Handle| format.download(client, handle, rows * of.head_dim_v);
    let lses = |handle: &Handle| F32.download(client, handle, rows);
    let Outputs { out, outs, logsumexps, lists } = outputs;
    let bytes = client.read_one(lists).expect("the kernels ran");
    let (chunks, _) = bytes.as_chunks::<4>();
    let numbers: Vec<i32> = chunks.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    Results {
        out: down(&out),
        outs: [&outs.compressed, &outs.selected, &outs.window].map(down),
        logsumexps: [&logsumexps.compressed, &logsumexps.selected, &logsumexps.window].map(lses),
        lists: numbers[..entries].chunks(of.selection.num_selected).map(<[_]>::to_vec).collect(),
    }
}

/// Attention of a head to some tokens of a branch: its vector and its logsumexp.
fn attend(
    of: &Decoding,
    data: &Data,
    branch: usize,
    [batch, head]: [usize; 2],
    seen: &[usize],
) -> (Vec<f64>, f64) {
    let Selection { heads, heads_kv, head_dim, scale, .. } = of.selection;
    let [key, value] = &data.tokens[branch];
    let query = &data.query[(batch * heads + head) * head_dim..][..head_dim];
    let at =
        |token: usize| (batch * counts(of)[branch] + token) * heads_kv + head / (heads / heads_kv);
    let score = |token: &usize| -> f64 {
        let key = &key[at(*token) * head_dim..];
        scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
    };
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; of.head_dim_v];
    for (token, weight) in seen.iter().zip(weights) {
        let value = &value[at(*token) * of.head_dim_v..];
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / total * value);
    }
    (out, if seen.is_empty() { f64::NEG_INFINITY } else { most + total.ln() })
}

/// An error says what is wrong: lists are held to the reference's unless rounding may have chosen, branches to attention over these lists, and
/// the sum to the branches as they are.
pub fn check(of: &Decoding, data: &Data, format: Format, got: &Results) -> Result<(), String> {
    let Selection { batch, heads, heads_kv, slc_block, tokens, .. } = of.selection;
    let [key, _] = &data.tokens[0];
    let tensors = Tensors { query: data.query.clone(), key: key.clone() };
    let expected = reference(&of.selection, &tensors);
    let all = got.lists.iter().zip(&expected.lists.blocks).zip(&expected.gaps.blocks);
    for (number, ((actual, exact), gap)) in all.enumerate() {
        if *gap >= 1e-5 && actual != exact {
            return Err(format!("list {number} is {actual:?}, not {exact:?}, gap {gap:e}"));
        }
    }
    let ulp = half_ulp(format);
    let close = |what: &str, actual: f64, exact: f64, allowed: f64| {
        let is_close = actual == exact || (actual - exact).abs() <= allowed;
        if is_close { Ok(()) } else { Err(format!("{what} is {actual}, not {exact}")) }
    };
    for row in 0..batch * heads {
        let at = [row / heads, row % heads];
        let list = &got.lists[at[0] * heads_kv + at[1] / (heads / heads_kv)];
        let blocks = list.iter().filter(|block| **block >= 0).map(|block| *block as usize);
        let of_blocks = blocks.flat_map(|block| block * slc_block..(block + 1) * slc_block);
        let window = of.window.min(of.window_tokens);
        let seen: [Vec<usize>; 3] = [
            (0..of.selection.compressed()).collect(),
            of_blocks.filter(|token| *token < tokens).collect(),
            (of.window_tokens - window..of.window_tokens).collect(),
        ];
        for (branch, seen) in seen.iter().enumerate() {
            let (out, lse) = attend(of, data, branch, at, seen);
            let what = format!("row {row} of branch {branch}");
            close(&format!("logsumexp of {what}"), got.logsumexps[branch][row], lse, 1e-4)?;
            for (column, exact) in out.into_iter().enumerate() {
                let actual = got.outs[branch][row * of.head_dim_v + column];
                close(&format!("{what}, column {column},"), actual, exact, 6.0 * ulp)?;
            }
        }
        for column in 0..of.head_dim_v {
            let parts = [0, 1, 2].map(|branch| {
                data.gates[row * 3 + branch] * got.outs[branch][row * of.head_dim_v + column]
            });
            let size: f64 = parts.iter().map(|part| part.abs()).sum();
            let actual = got.out[row * of.head_dim_v + column];
            let what = format!("row {row}, column {column},");
            close(&what, actual, parts.iter().sum(), 1.1 * ulp * size + 1e-7)?;
        }
    }
    Ok(())
}

/// Short blocks: two samples, groups of two.
pub fn small(tokens: usize) -> Decoding {
    let mut selection = crate::selection::small(tokens);
    (selection.rows, selection.head_dim, selection.scale) = (1, 16, 0.25);
    Decoding { selection, head_dim_v: 16, window: 20, window_tokens: tokens }
}

/// Every way that a problem is split, and its edges.
pub fn cases() -> Vec<(&'static str, Decoding)> {
    let of = |tokens, change: fn(&mut Decoding)| {
        let mut of = small(tokens);
        change(&mut of);
        of
    };
    let group = |of: &mut Decoding, heads, heads_kv| {
        (of.selection.heads, of.selection.heads_kv) = (heads, heads_kv);
    };
    let mut paper = of(2100, |of| {
        let selection = &mut of.selection;
        (selection.cmp_block, selection.cmp_stride, selection.slc_block) = (32, 16, 64);
        (selection.batch, selection.num_selected, selection.scale) = (1, 8, 128f64.powf(-0.5));
        (selection.head_dim, of.head_dim_v, of.window) = (128, 128, 200);
    });
    group(&mut paper, 32, 2);
    let mut odd = small(700);
    group(&mut odd, 9, 3);
    (odd.selection.batch, odd.head_dim_v) = (3, 48);
    let mut one = small(600);
    group(&mut one, 2, 2);
    one.selection.head_dim = 64;
    let mut wide = small(300);
    group(&mut wide, 12, 1);
    (wide.selection.head_dim, wide.head_dim_v, wide.selection.scale) = (256, 256, 0.06);
    vec![
        ("some of all", small(230)),
        ("the paper's", paper),
        ("groups of three, three samples", odd),
        ("groups of one", one),
        ("vectors of 256", wide),
        ("the first token", small(1)),
        ("nothing is compressed", small(7)),
        ("one compressed block", small(8)),
        ("fewer blocks than entries", small(60)),
        ("a window longer than the tokens", of(40, |of| of.window = 512)),
        ("no window", of(100, |of| of.window = 0)),
        ("its own token alone", of(100, |of| of.window = 1)),
        ("the window's last tokens", of(230, |of| of.window_tokens = 19)),
        ("none is free", of(230, |of| of.selection.num_selected = 3)),
        (
            "no first blocks",
            of(230, |of| {
                (of.selection.num_init, of.selection.num_local) = (0, 1);
            }),
        ),
        ("a whole list", of(2000, |of| of.selection.num_selected = 32)),
        (
            "lists and windows of many splits",
            of(3000, |of| {
                let selection = &mut of.selection;
                (selection.cmp_block, selection.cmp_stride, selection.slc_block) = (32, 16, 64);
                (selection.batch, selection.num_selected, of.window) = (1, 32, 1300);
            }),
        ),
        (
            "many parts",
            of(9000, |of| {
                (of.selection.batch, of.selection.slc_block) = (1, 8);
                (of.selection.heads, of.selection.heads_kv) = (4, 1);
            }),
        ),
        (
            "long compressed blocks",
            of(500, |of| {
                (of.selection.cmp_block, of.selection.slc_block) = (32, 8);
            }),
        ),
        (
            "apart",
            of(500, |of| {
                (of.selection.cmp_block, of.selection.cmp_stride) = (16, 16);
            }),
        ),
        ("the first of a tile", of(257, |of| of.selection.query_tile = 8)),
        ("a tile of blocks", of(193, |of| of.selection.query_tile = 32)),
        ("a negative scale", of(230, |of| of.selection.scale = -0.25)),
    ]
}
