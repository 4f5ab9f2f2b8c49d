use burn::tensor::Tensor;

use super::span;
#[cfg(feature = "cuda")]
use crate::backend::decode::Span;

/// Tokens that grow at the end, `[batch, tokens, heads, dim]`, in memory that is longer than they are.
///
/// Appending writes the new tokens alone, until the memory is full: then twice as much as is in use takes over. So a token costs the same on
/// average, however many there are.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenBuffer {
    memory: Option<Tensor<4>>,
    /// Where the first token is.
    start: usize,
    count: usize,
}

impl TokenBuffer {
    /// Appends tokens, after it has forgotten all but the last `keep` that it has.
    pub fn append(&mut self, tokens: Tensor<4>, keep: usize) {
        self.forget_all_but(keep);
        let [batch, new, heads, dim] = tokens.dims();
        if new == 0 {
            return;
        }
        let memory = self.room_for(new, &tokens);
        // Written in place: nobody else holds this memory.
        let places = [0..batch, self.end()..self.end() + new, 0..heads, 0..dim];
        self.memory = Some(memory.slice_assign(places, tokens));
        self.count += new;
    }

    /// The memory, for others to write `new` tokens, of the kind of `like`, behind the last `keep` that it has, and where all of these are then. To
    /// be [given back](Self::take_back).
    #[cfg(feature = "cuda")]
    pub fn lend(&mut self, like: &Tensor<4>, new: usize, keep: usize) -> (Tensor<4>, Span) {
        self.forget_all_but(keep);
        let memory = self.room_for(new, like);
        self.count += new;
        (memory, Span { start: self.start, count: self.count })
    }

    /// Holds the memory again that was lent.
    #[cfg(feature = "cuda")]
    pub fn take_back(&mut self, memory: Tensor<4>) {
        self.memory = Some(memory);
    }

    fn forget_all_but(&mut self, keep: usize) {
        let kept = self.count.min(keep);
        (self.start, self.count) = (self.end() - kept, kept);
    }

    fn end(&self) -> usize {
        self.start + self.count
    }

    /// Memory of the tokens and `new` ones, of the kind of `like`.
    fn room_for(&mut self, new: usize, like: &Tensor<4>) -> Tensor<4> {
        let memory = match self.memory.take() {
            Some(memory) if self.end() + new <= memory.dims()[1] => return memory,
            memory => memory,
        };
        let [batch, _, heads, dim] = like.dims();
        let count = 2 * (self.count + new).max(1);
        let longer = Tensor::zeros([batch, count, heads, dim], (&like.device(), like.dtype()));
        let start = std::mem::take(&mut self.start);
        match memory.filter(|_| self.count > 0) {
            Some(memory) => {
                let kept = memory.narrow(1, start, self.count);
                longer.slice_assign([0..batch, 0..self.count, 0..heads, 0..dim], kept)
            }
            None => longer,
        }
    }

    /// Appends tokens to the last `before`, and gives all of them; `after` of them are going to be asked for. Of a prompt the
    /// memory takes no more.
    pub fn append_recent(&mut self, tokens: Tensor<4>, before: usize, after: usize) -> Tensor<4> {
        let new = tokens.dims()[1];
        if new <= after.max(1) {
            self.append(tokens.clone(), before);
            return self.tokens(&tokens);
        }
        let kept = self.count.min(before);
        let whole = match self.memory.take() {
            Some(memory) if kept > 0 => {
                let recent = memory.narrow(1, self.start + self.count - kept, kept);
                Tensor::cat(vec![recent, tokens], 1)
            }
            _ => tokens,
        };
        *self = Self::default();
        let count = whole.dims()[1];
        let after = after.min(count);
        self.append(span(whole.clone(), count - after, after), 0);
        whole
    }

    /// The tokens, as a view; none of the kind of `like` where there are none.
    pub fn tokens(&self, like: &Tensor<4>) -> Tensor<4> {
        match &self.memory {
            Some(memory) => span(memory.clone(), self.start, self.count),
            None => span(like.clone(), 0, 0),
        }
    }

    /// The last ones, of which there are as many, as a view.
    pub fn last(&self, count: usize, like: &Tensor<4>) -> Tensor<4> {
        match &self.memory {
            Some(memory) => span(memory.clone(), self.start + self.count - count, count),
            None => span(like.clone(), 0, 0),
        }
    }

    /// How many tokens there is memory for.
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.dims()[1])
    }
}
