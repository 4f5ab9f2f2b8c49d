//! What the new token brings, which the first launch writes behind what is there.

use super::launch::{ELEMENT, Inputs, View, check_vectors};
use super::plan::Decoding;
use crate::native::grid::words;
use crate::native::launch::{Argument, Buffer};
use crate::sparse::Selection;
use crate::{KernelError, KeyValue, Strided};

/// Keys, or values, of the new token.
#[derive(Clone, Debug)]
pub struct NewToken<T> {
    /// `[batch, 1, heads_kv, dim]`; becomes the last one of [`Inputs`]' `tokens.selected`.
    pub selected: T,
    /// Likewise of `tokens.window`; none where those are among the ones of `tokens.selected`.
    pub window: Option<T>,
    /// Where blocks are compressed of other tokens than those of `tokens.selected`.
    pub compressed: Option<Rest<T>>,
}

/// Tokens that are not compressed yet, or not for the last time.
#[derive(Clone, Debug)]
pub struct Rest<T> {
    /// `[batch, 1, heads_kv, dim]`
    pub token: T,
    /// `[batch, count, heads_kv, dim]`, whose last one becomes `token`.
    pub tokens: T,
    /// With the new one.
    pub count: usize,
}

/// Keys or values: the new token, and the memory that it goes to.
struct Side<'a> {
    name: &'static str,
    dim: usize,
    new: &'a NewToken<Strided>,
    /// Of compressed blocks, of all tokens, and of the window.
    tokens: [&'a Strided; 3],
}

/// Tensors, and which of their tokens it is about.
struct Place<'a> {
    tensor: &'a Strided,
    token: usize,
}

fn sides<'a>(
    of: &Decoding,
    new: &'a KeyValue<NewToken<Strided>>,
    inputs: &'a Inputs<Strided>,
) -> [Side<'a>; 2] {
    let tokens = inputs.tokens.as_array();
    [
        Side {
            name: "key",
            dim: of.selection.head_dim,
            new: &new.key,
            tokens: tokens.map(|tokens| &tokens.key),
        },
        Side {
            name: "value",
            dim: of.head_dim_v,
            new: &new.value,
            tokens: tokens.map(|tokens| &tokens.value),
        },
    ]
}

impl<'a> Side<'a> {
    /// The new token, and where it goes to: for the list, for the window, and for what is not compressed yet.
    fn moves(&self, of: &Decoding) -> [Option<(&'a Strided, Place<'a>)>; 3] {
        let NewToken { selected, window, compressed } = self.new;
        let [_, all, recent] = self.tokens;
        let last = |tensor, count: usize| Place { tensor, token: count - 1 };
        [
            Some((selected, last(all, of.selection.tokens))),
            window.as_ref().map(|token| (token, last(recent, of.window_tokens))),
            compressed.as_ref().map(|rest| (&rest.token, last(&rest.tokens, rest.count))),
        ]
    }

    /// The first token of the block that is complete with the new one, and where the block goes to.
    fn block(&self, of: &Decoding) -> [Place<'a>; 2] {
        let (tensor, count) = match &self.new.compressed {
            Some(rest) => (&rest.tokens, rest.count),
            None => (self.tokens[1], of.selection.tokens),
        };
        let first = Place { tensor, token: count - of.selection.cmp_block };
        [first, Place { tensor: self.tokens[0], token: of.selection.compressed() - 1 }]
    }

    fn check(&self, of: &Decoding) -> Result<(), KernelError> {
        let shape = |tokens| of.shape(tokens, of.selection.heads_kv, self.dim);
        let NewToken { selected, window, compressed } = self.new;
        check_vectors(self.name, selected, shape(1))?;
        if let Some(token) = window {
            check_vectors(self.name, token, shape(1))?;
            at_least(self.name, of.window_tokens, 1)?;
        }
        if let Some(Rest { token, tokens, count }) = compressed {
            check_vectors(self.name, token, shape(1))?;
            at_least(self.name, *count, if of.completes() { of.selection.cmp_block } else { 1 })?;
            check_vectors(self.name, tokens, shape(*count))?;
        }
        Ok(())
    }
}

fn at_least(name: &str, count: usize, least: usize) -> Result<(), KernelError> {
    match count >= least {
        true => Ok(()),
        false => {
            let text = format!("{name} has memory of {count} tokens, {least} are needed");
            Err(KernelError::Problem(text))
        }
    }
}

/// Whether the new token and the memory it goes to are there.
pub(super) fn check(of: &Decoding, inputs: &Inputs<Strided>) -> Result<(), KernelError> {
    let Some(new) = &inputs.new else { return Ok(()) };
    sides(of, new, inputs).iter().try_for_each(|side| side.check(of))
}

/// Kernels' `AppendParams`, but for what is an address.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AppendParams {
    pointers: [u64; 16],
    of_from: [[View; 3]; 2],
    of_to: [[View; 3]; 2],
    of_tokens: [View; 2],
    of_blocks: [View; 2],
    block: i32,
    unused: i32,
}

const _: () = assert!(size_of::<AppendParams>() == 8 * (16 + 3 * 16) + 4 * 2);

/// The argument, whose buffers join those that are there.
pub(super) fn argument(
    of: &Decoding,
    inputs: &Inputs<Strided>,
    buffers: &mut Vec<Buffer>,
) -> Argument {
    let mut params = AppendParams::default();
    let mut addresses = vec![];
    let mut places: Vec<_> = buffers.iter().map(Buffer::place).collect();
    let mut address = |word: usize, buffer: Buffer, bytes: usize| {
        let place = buffer.place();
        let number = places.iter().position(|known| *known == place).unwrap_or(places.len());
        if number == places.len() {
            places.push(place);
            buffers.push(buffer);
        } else if buffer.is_output {
            buffers[number] = buffer;
        }
        addresses.push((word, number, bytes));
    };
    let [to_word, tokens_word, blocks_word] = [6, 12, 14];
    for (side, new) in inputs.new.iter().flat_map(|new| sides(of, new, inputs)).enumerate() {
        for (set, found) in new.moves(of).into_iter().enumerate() {
            let Some((from, to)) = found else { continue };
            let word = 3 * side + set;
            address(word, Buffer::read(&from.handle), 0);
            address(to_word + word, Buffer::updated(&to.tensor.handle), to.bytes());
            params.of_from[side][set] = View::of(from);
            params.of_to[side][set] = View::of(to.tensor);
        }
        if of.completes() {
            let [first, block] = new.block(of);
            address(tokens_word + side, Buffer::updated(&first.tensor.handle), first.bytes());
            address(blocks_word + side, Buffer::updated(&block.tensor.handle), block.bytes());
            params.of_tokens[side] = View::of(first.tensor);
            params.of_blocks[side] = View::of(block.tensor);
            params.block = of.selection.cmp_block as i32;
        }
    }
    // SAFETY: the assertion above counts every byte.
    Argument::Struct { words: unsafe { words(params) }, pointers: addresses }
}

impl Place<'_> {
    fn bytes(&self) -> usize {
        ELEMENT * self.token * self.tensor.strides[3]
    }
}

impl Decoding {
    /// Whether a compressed block is complete with the new token.
    pub fn completes(&self) -> bool {
        let before = Selection { tokens: self.selection.tokens - 1, ..self.selection };
        self.selection.compressed() > before.compressed()
    }
}
