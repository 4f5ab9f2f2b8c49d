use burn::tensor::Tensor;

use super::span;

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
        let [batch, new, heads, dim] = tokens.dims();
        let kept = self.count.min(keep);
        (self.start, self.count) = (self.start + self.count - kept, kept);
        if new == 0 {
            return;
        }
        let end = self.start + self.count + new;
        let memory = match self.memory.take() {
            Some(memory) if end <= memory.dims()[1] => memory,
            memory => {
                let count = 2 * (self.count + new);
                let options = (&tokens.device(), tokens.dtype());
                let longer = Tensor::zeros([batch, count, heads, dim], options);
                let start = std::mem::take(&mut self.start);
                match memory.filter(|_| self.count > 0) {
                    Some(memory) => {
                        let kept = memory.narrow(1, start, self.count);
                        longer.slice_assign([0..batch, 0..self.count, 0..heads, 0..dim], kept)
                    }
                    None => longer,
                }
            }
        };
        // Written in place: nobody else holds this memory.
        let place = self.start + self.count;
        let places = [0..batch, place..place + new, 0..heads, 0..dim];
        self.memory = Some(memory.slice_assign(places, tokens));
        self.count += new;
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
