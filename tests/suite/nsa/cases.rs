//! Problems with known results, and how they are run.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData, activation::sigmoid};
use burn_natten::nsa::{BranchTokens, PerBranch};
use burn_natten::{
    AttentionError, AttentionOutput, Mslk, NativeSparseAttentionOptions, NativeSparseOutput,
    Pooling, Strategy, try_native_sparse_attention, try_native_sparse_attention_packed,
};
use serde::Deserialize;

use crate::support::run::{round, tensor, values};

pub const BRANCHES: [&str; 3] = ["cmp", "slc", "win"];

/// Numbers and their shape.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

#[derive(Clone, Deserialize)]
struct Slice {
    offset: usize,
    shape: Vec<usize>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Options {
    pub cmp_block: usize,
    pub cmp_stride: usize,
    pub slc_block: usize,
    pub num_selected: usize,
    pub num_init: usize,
    pub num_local: usize,
    pub window: usize,
    pub query_tile: usize,
    pub cmp_top: Option<usize>,
    pub cmp_group: usize,
    pub scale: f64,
    pub mode: String,
    pub causal: bool,
    pub fill: String,
}

#[derive(Clone, Deserialize)]
struct Golden {
    name: String,
    cu_seqlens: Option<Vec<usize>>,
    pool: String,
    gate: String,
    shared_kv: bool,
    options: Options,
    tensors: BTreeMap<String, Slice>,
}

/// A problem and its results, as far as they are stored.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub cu_seqlens: Option<Vec<usize>>,
    pub pool: String,
    pub gate: String,
    pub shared_kv: bool,
    pub options: Options,
    pub tensors: BTreeMap<String, Array>,
}

/// Those of the repository, or all of them where a folder has them.
pub fn cases() -> Vec<Case> {
    let Ok(folder) = std::env::var("BURN_NATTEN_TEST_GOLDEN") else {
        let text = include_str!("../../golden/nsa.json");
        return parse(text, include_bytes!("../../golden/nsa.bin"));
    };
    let read = |name: &str| {
        let path = Path::new(&folder).join("nsa").join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let text = String::from_utf8(read("cases.json")).expect("cases.json is text");
    let cases = parse(&text, &read("cases.bin"));
    assert_eq!(cases.len(), 34);
    cases
}

fn parse(text: &str, bytes: &[u8]) -> Vec<Case> {
    let golden: Vec<Golden> = serde_json::from_str(text).expect("the file is as described");
    let array = |slice: Slice| {
        let count: usize = slice.shape.iter().product();
        let numbers = bytes[4 * slice.offset..][..4 * count].chunks_exact(4);
        let number =
            |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().expect("four bytes")));
        Array { values: numbers.map(number).collect(), shape: slice.shape }
    };
    let case = |golden: Golden| Case {
        name: golden.name,
        cu_seqlens: golden.cu_seqlens,
        pool: golden.pool,
        gate: golden.gate,
        shared_kv: golden.shared_kv,
        options: golden.options,
        tensors: golden.tensors.into_iter().map(|(name, slice)| (name, array(slice))).collect(),
    };
    golden.into_iter().map(case).collect()
}

/// How a case is run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub device: Device,
    pub dtype: DType,
    pub strategy: Strategy,
    /// Whether each branch has keys and values of its own, whatever the case says.
    pub own: bool,
    /// Whether compressed keys and values are given.
    pub compressed: bool,
    /// Whether lists are given.
    pub lists: bool,
    /// Whether gates are known not to be negative.
    pub nonnegative: bool,
}

impl Setup {
    pub fn new(device: &Device, dtype: DType, strategy: Strategy) -> Self {
        let device = device.clone().autodiff();
        Self {
            device,
            dtype,
            strategy,
            own: false,
            compressed: false,
            lists: false,
            nonnegative: false,
        }
    }
}

/// Results and gradients under the names of the cases.
pub type Results = BTreeMap<String, Vec<f64>>;

impl Options {
    pub fn build(&self, strategy: Strategy) -> NativeSparseAttentionOptions {
        let mslk = (self.mode == "mslk")
            .then(|| Mslk::new().with_causal(self.causal).with_repeats(self.fill == "block0"));
        NativeSparseAttentionOptions::new()
            .with_cmp_block(self.cmp_block)
            .with_cmp_stride(self.cmp_stride)
            .with_slc_block(self.slc_block)
            .with_num_selected(self.num_selected)
            .with_num_init(self.num_init)
            .with_num_local(self.num_local)
            .with_window(self.window)
            .with_query_tile(self.query_tile)
            .with_cmp_top(self.cmp_top)
            .with_cmp_group(self.cmp_group)
            .with_scale(self.scale)
            .with_mslk(mslk)
            .with_strategy(strategy)
    }
}

impl Case {
    pub fn get(&self, name: &str) -> &Array {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }

    /// The same with inputs as a half type has them.
    pub fn rounded(&self, dtype: DType) -> Self {
        let mut case = self.clone();
        for (name, array) in &mut case.tensors {
            let is_input = ["q", "k", "v", "gates", "gate_weight", "pool_k", "pool_v", "dout"]
                .contains(&name.as_str())
                || name.starts_with("k_")
                || name.starts_with("v_");
            if is_input {
                array.values = round(dtype, &array.values);
            }
        }
        case
    }

    pub fn tensor<const D: usize>(&self, name: &str, setup: &Setup) -> Tensor<D> {
        let Array { shape, values } = self.get(name);
        let shape = shape.clone().try_into().expect("the rank of the case");
        tensor::<D>(values, shape, &setup.device, setup.dtype)
    }

    pub fn leaf<const D: usize>(
        &self,
        name: &str,
        setup: &Setup,
        leaves: &mut Vec<Leaf>,
    ) -> Tensor<D> {
        let tensor = self.tensor::<D>(name, setup).require_grad();
        leaves.push(Leaf::new(format!("d{name}"), tensor.clone()));
        tensor
    }

    pub fn lists(&self, name: &str, device: &Device) -> Option<Tensor<4, Int>> {
        let Array { shape, values } = self.tensors.get(name)?;
        let numbers: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        Some(Tensor::from_data(TensorData::new(numbers, shape.clone()), device))
    }

    /// Whether no gate is negative.
    pub fn has_nonnegative_gates(&self) -> bool {
        self.gate != "given" || self.get("gates").values.iter().all(|gate| *gate >= 0.0)
    }

    /// Keys, or values.
    fn tokens(&self, name: &str, setup: &Setup, leaves: &mut Vec<Leaf>) -> BranchTokens {
        if self.shared_kv && !setup.own {
            return self.leaf::<4>(name, setup, leaves).into();
        }
        let [compressed, selected, window] = BRANCHES.map(|branch| {
            let own = format!("{name}_{branch}");
            let source = if self.shared_kv { name } else { &own };
            let tensor = self.tensor::<4>(source, setup).require_grad();
            leaves.push(Leaf::new(format!("d{own}"), tensor.clone()));
            tensor
        });
        PerBranch { compressed, selected, window }.into()
    }

    pub fn pooling(&self, name: &str, setup: &Setup, leaves: &mut Vec<Leaf>) -> Pooling {
        match self.pool.as_str() {
            "weighted" => Pooling::Weighted(self.leaf(name, setup, leaves)),
            "mean_proj" => Pooling::MeanProjected(self.leaf(name, setup, leaves)),
            "linear" => Pooling::Linear(self.leaf(name, setup, leaves)),
            _ => Pooling::Mean,
        }
    }

    fn gates(&self, query: Tensor<4>, setup: &Setup, leaves: &mut Vec<Leaf>) -> Tensor<4> {
        let [batch, rows, heads, dim] = query.dims();
        match self.gate.as_str() {
            "given" => self.leaf("gates", setup, leaves),
            "query" => {
                let weight = self.leaf::<3>("gate_weight", setup, leaves);
                let products = query.reshape([batch, rows, heads, 1, dim])
                    * weight.reshape([1, 1, heads, 3, dim]);
                sigmoid(products.sum_dim(4).reshape([batch, rows, heads, 3]))
            }
            _ => {
                let options = (&setup.device, setup.dtype);
                Tensor::full([batch, rows, heads, 3], 1.0 / 3.0, options)
            }
        }
    }

    /// Runs both passes.
    pub fn run(&self, setup: &Setup) -> Results {
        let (output, leaves) = self.forward(setup).expect("a valid problem");
        let mut results = results_of(&output);
        let gradients = self.loss(&output, setup).backward();
        for leaf in leaves {
            if let Some(gradient) = leaf.gradient(&gradients) {
                results.insert(leaf.name, gradient);
            }
        }
        results
    }

    pub fn forward(
        &self,
        setup: &Setup,
    ) -> Result<(NativeSparseOutput, Vec<Leaf>), AttentionError> {
        let mut leaves = vec![];
        let query = self.leaf::<4>("q", setup, &mut leaves);
        let key = self.tokens("k", setup, &mut leaves);
        let value = self.tokens("v", setup, &mut leaves);
        let gates = self.gates(query.clone(), setup, &mut leaves);
        let options = self.options.build(setup.strategy);
        let mut options = options.with_nonnegative_gates(setup.nonnegative);
        if setup.compressed {
            let key = self.leaf("kc", setup, &mut leaves);
            let value = self.leaf("vc", setup, &mut leaves);
            options = options.with_compressed((key, value));
        } else {
            let key = self.pooling("pool_k", setup, &mut leaves);
            let value = self.pooling("pool_v", setup, &mut leaves);
            options = options.with_pooling(key, value);
        }
        if setup.lists {
            options = options
                .with_blocks(self.lists("indices", &setup.device))
                .with_cmp_blocks(self.lists("cmp_indices", &setup.device));
        }
        let output = match &self.cu_seqlens {
            Some(lengths) => {
                try_native_sparse_attention_packed(query, key, value, gates, lengths, options)
            }
            None => try_native_sparse_attention(query, key, value, gates, options),
        };
        Ok((output?, leaves))
    }

    /// The loss of the cotangents that are stored.
    fn loss(&self, output: &NativeSparseOutput, setup: &Setup) -> Tensor<1> {
        let dout = self.tensor::<4>("dout", setup);
        let loss = (output.out.clone() * dout).sum();
        let sums = output.branches.window.logsumexp.dtype();
        loss.cast(FloatDType::from(sums)) + self.loss_of_lse(output, setup)
    }

    /// The part of the loss that is of logsumexps.
    pub fn loss_of_lse(&self, output: &NativeSparseOutput, setup: &Setup) -> Tensor<1> {
        let lse_dtype = output.branches.window.logsumexp.dtype();
        let mut loss = Tensor::zeros([1], (&setup.device, lse_dtype));
        for (branch, output) in BRANCHES.iter().zip(output.branches.clone().into_array()) {
            if let Some(Array { values, shape }) = self.tensors.get(&format!("dlse_{branch}")) {
                let shape = shape.clone().try_into().expect("three axes");
                let dlse = tensor::<3>(values, shape, &setup.device, lse_dtype);
                let lse = output.logsumexp;
                let is_blind = lse.clone().equal_elem(f32::NEG_INFINITY);
                loss = loss + (lse.mask_fill(is_blind, 0.0) * dlse).sum();
            }
        }
        loss
    }
}

fn results_of(output: &NativeSparseOutput) -> Results {
    let lists = |lists: Tensor<4, Int>| {
        let data = lists.into_data().convert::<i64>();
        let numbers = data.try_to_vec::<i64>().expect("converted to i64");
        numbers.into_iter().map(|number| number as f64).collect::<Vec<_>>()
    };
    let mut results = Results::new();
    results.insert("out".into(), values(output.out.clone()));
    results.insert("indices".into(), lists(output.blocks.clone()));
    if let Some(cmp_blocks) = &output.cmp_blocks {
        results.insert("cmp_indices".into(), lists(cmp_blocks.clone()));
    }
    for (branch, AttentionOutput { out, logsumexp, .. }) in
        BRANCHES.iter().zip(output.branches.clone().into_array())
    {
        results.insert(format!("out_{branch}"), values(out));
        results.insert(format!("lse_{branch}"), values(logsumexp));
    }
    results
}

/// A tensor whose gradient is asked for.
pub struct Leaf {
    pub name: String,
    tensor: Ranked,
}

enum Ranked {
    Two(Tensor<2>),
    Three(Tensor<3>),
    Four(Tensor<4>),
}

impl Leaf {
    fn new<const D: usize>(name: String, tensor: Tensor<D>) -> Self {
        let shape = tensor.dims();
        let same = tensor.into_dispatch();
        let tensor = match shape.len() {
            2 => Ranked::Two(Tensor::from_dispatch(same)),
            3 => Ranked::Three(Tensor::from_dispatch(same)),
            _ => Ranked::Four(Tensor::from_dispatch(same)),
        };
        Self { name, tensor }
    }

    pub fn gradient(&self, gradients: &burn::tensor::Gradients) -> Option<Vec<f64>> {
        match &self.tensor {
            Ranked::Two(tensor) => tensor.grad(gradients).map(values),
            Ranked::Three(tensor) => tensor.grad(gradients).map(values),
            Ranked::Four(tensor) => tensor.grad(gradients).map(values),
        }
    }
}
