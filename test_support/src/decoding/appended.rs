//! Kernels that write the new token's keys and values themselves.

use burn_natten_kernels::native::decode::{Decoding, Inputs, NewToken, Outputs, Rest};
use burn_natten_kernels::{KernelError, KeyValue, Shape, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{Data, check, run_on, shapes, upload};
use crate::blocks::{Layout, places, view};
use crate::compare::half_ulp;
use crate::format::Format;

/// Of keys and of values: whether the window, and what is compressed, have memory of their own.
pub type Own = [bool; 2];

/// Keys or values.
struct Side {
    own: bool,
    /// Of compressed blocks, of all tokens, and of the window.
    shapes: [Shape; 3],
    /// Tokens that blocks are compressed of, where they are not all tokens.
    rest: (Vec<f64>, Shape),
}

/// Runs a launch on memory without the new token, which it gets besides. An error says what is wrong: results as [`check`] has them, and memory
/// is to be as it was but for the new token, and the block that is complete with it.
pub fn check_appended(
    client: &Client,
    of: &Decoding,
    data: &Data,
    own: Own,
    (format, layout): (Format, Layout),
    launch: impl FnOnce(&Inputs<Strided>, &Outputs<Handle>) -> Result<(), KernelError>,
) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(data.query.len() as u64);
    let mut data = data.clone();
    let shapes = shapes(of).2;
    let sides = [0, 1].map(|side| {
        let shape =
            of.shape(of.selection.cmp_block + 3, of.selection.heads_kv, shapes[0][side].dim);
        let random = (0..shape.elements()).map(|_| (format.round)(rng.random_range(-2.0..2.0)));
        let rest = (random.collect(), shape);
        Side { own: own[side], shapes: shapes.map(|both| both[side]), rest }
    });
    for (number, side) in sides.iter().enumerate() {
        if !side.own {
            data.tokens[2][number] =
                last(&data.tokens[1][number], side.shapes[1], of.window_tokens);
        }
    }
    // Without the new token.
    let mut before = data.clone();
    for (number, side) in sides.iter().enumerate() {
        for branch in [1, 2] {
            forget_last(&mut before.tokens[branch][number], side.shapes[branch]);
        }
        if of.completes() {
            forget_last(&mut before.tokens[0][number], side.shapes[0]);
        }
    }
    let mut inputs = upload(client, of, &before, format, layout);
    let up = |values: &[f64], shape| view(client, format, values, shape, layout);
    let one = |side: &Side| Shape { tokens: [1; 3], ..side.shapes[1] };
    let new = |number: usize| {
        let side = &sides[number];
        let token = |branch: usize| {
            up(&last(&data.tokens[branch][number], side.shapes[branch], 1), one(side))
        };
        let mut rest = side.rest.clone();
        let rest_token = up(&last(&rest.0, rest.1, 1), one(side));
        forget_last(&mut rest.0, rest.1);
        let rest = Rest { token: rest_token, tokens: up(&rest.0, rest.1), count: rest.1.tokens[2] };
        NewToken {
            selected: token(1),
            window: side.own.then(|| token(2)),
            compressed: side.own.then_some(rest),
        }
    };
    let new = KeyValue { key: new(0), value: new(1) };
    let recent = |all: &Strided| Strided {
        handle: all.handle.clone().offset_start(
            ((of.selection.tokens - of.window_tokens) * all.strides[3] * format.elem().size())
                as u64,
        ),
        ..all.clone()
    };
    let tokens = &mut inputs.tokens;
    if !own[0] {
        tokens.window.key = recent(&tokens.selected.key);
    }
    if !own[1] {
        tokens.window.value = recent(&tokens.selected.value);
    }
    inputs.new = Some(new);
    let results = run_on(client, of, format, &inputs, launch);

    let new = inputs.new.as_ref().expect("there is one");
    let tokens = &inputs.tokens;
    let branches = [&tokens.compressed, &tokens.selected, &tokens.window];
    let views = [branches.map(|both| &both.key), branches.map(|both| &both.value)];
    let rests = [&new.key.compressed, &new.value.compressed];
    for (number, ((side, views), rest)) in sides.iter().zip(views).zip(rests).enumerate() {
        let name = ["key", "value"][number];
        let is_as = |what: &str, tensor: &Strided, expected: &[f64], shape: Shape| match download(
            client, format, tensor, shape,
        )?
            == expected
        {
            true => Ok(()),
            false => Err(format!("{what} of {name} is not as it should be")),
        };
        is_as("what is selected from", views[1], &data.tokens[1][number], side.shapes[1])?;
        if let Some(Rest { tokens, .. }) = rest {
            is_as("the rest", tokens, &side.rest.0, side.rest.1)?;
            is_as("the window", views[2], &data.tokens[2][number], side.shapes[2])?;
        }
        if of.selection.compressed() > 0 {
            let blocks = download(client, format, views[0], side.shapes[0])?;
            let (tokens, shape) = match side.own {
                true => (&side.rest.0, side.rest.1),
                false => (&data.tokens[1][number], side.shapes[1]),
            };
            let means = mean_of_last(tokens, shape, of.selection.cmp_block);
            let mut expected = data.tokens[0][number].clone();
            if of.completes() {
                let got = last(&blocks, side.shapes[0], 1);
                for (got, exact) in got.iter().zip(means) {
                    let allowed = 1.01 * half_ulp(format) * exact.abs() + 1e-7;
                    if (got - exact).abs() > allowed || got.is_nan() {
                        return Err(format!("a block of {name} is {got}, not {exact}"));
                    }
                }
                put_last(&mut expected, side.shapes[0], &got);
            }
            if blocks != expected {
                return Err(format!("compressed blocks of {name} are not as they should be"));
            }
            data.tokens[0][number] = blocks;
        }
    }
    check(of, &data, format, &results)
}

/// Elements of a token of a sample, and where the last `count` tokens of each sample begin.
fn ends(shape: Shape, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let token = shape.heads * shape.dim;
    let tokens = shape.tokens[2];
    (1..=shape.batch).map(move |sample| (sample * tokens - count) * token..sample * tokens * token)
}

fn last(values: &[f64], shape: Shape, count: usize) -> Vec<f64> {
    ends(shape, count).flat_map(|range| values[range].to_vec()).collect()
}

fn put_last(values: &mut [f64], shape: Shape, token: &[f64]) {
    let length = shape.heads * shape.dim;
    for (range, token) in ends(shape, 1).zip(token.chunks(length)) {
        values[range].copy_from_slice(token);
    }
}

fn forget_last(values: &mut [f64], shape: Shape) {
    ends(shape, 1).for_each(|range| values[range].fill(f64::NAN));
}

fn mean_of_last(values: &[f64], shape: Shape, count: usize) -> Vec<f64> {
    if shape.tokens[2] < count {
        return vec![];
    }
    let length = shape.heads * shape.dim;
    let mean = |range: std::ops::Range<usize>| {
        let tokens = &values[range];
        (0..length)
            .map(move |at| tokens.iter().skip(at).step_by(length).sum::<f64>() / count as f64)
    };
    ends(shape, count).flat_map(mean).collect()
}

/// A tensor, among which there is nothing but NaN.
fn download(
    client: &Client,
    format: Format,
    tensor: &Strided,
    shape: Shape,
) -> Result<Vec<f64>, String> {
    let size = client.read_one(tensor.handle.clone()).expect("the kernels ran").len();
    let memory = format.download(client, &tensor.handle, size / format.elem().size());
    let values: Vec<f64> = places(shape, tensor.strides).map(|place| memory[place]).collect();
    let numbers = memory.iter().filter(|x| !x.is_nan()).count();
    match numbers == values.len() {
        true => Ok(values),
        false => Err(format!("{numbers} numbers in memory of {}", values.len())),
    }
}
