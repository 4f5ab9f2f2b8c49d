//! The oracle, for problems that state which keys a query sees with no code of the library.

use test_support::oracle::{Attention, Tensors};

use super::problem::{Gradients, Inputs, Problem};

impl Problem {
    /// `(out, lse)`
    pub fn forward(&self, inputs: &Inputs) -> (Vec<f64>, Vec<f64>) {
        self.attention().forward(inputs.tensors())
    }

    /// Gradients for the cotangents in `inputs`. `out` is what the forward pass returned, which an
    /// implementation may have rounded.
    pub fn backward(&self, inputs: &Inputs, out: &[f64]) -> Gradients {
        let gradients = self.attention().backward(inputs.tensors(), out);
        Gradients {
            query: gradients.query,
            key: gradients.key,
            value: gradients.value,
            more_keys: gradients.additional_key,
            more_values: gradients.additional_value,
            bias: gradients.bias,
        }
    }

    fn attention(&self) -> Attention {
        let Self { batch, heads, heads_kv, dim, dim_v, .. } = *self;
        Attention {
            batch,
            keys: self.keys(),
            heads,
            heads_kv,
            dim,
            dim_v,
            additional: self.extra(),
            scale: self.scale(),
            visible: self.visible_keys(),
            places: if self.bias { self.places() } else { Vec::new() },
            entries: self.entries(),
            operand: |x| x,
        }
    }
}

impl Inputs {
    fn tensors(&self) -> Tensors<'_> {
        Tensors {
            query: &self.query,
            key: &self.key,
            value: &self.value,
            additional_key: &self.more_keys,
            additional_value: &self.more_values,
            bias: &self.bias,
            dout: &self.grad_out,
            dlse: &self.grad_lse,
        }
    }
}
