//! The same attention on one device and on several.

use std::fmt;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor, TensorCreationOptions};
use burn_natten::parallel::{
    Cluster, Estimate, HaloPlan, Link, Split, estimates, even_shards, try_join_tokens,
    try_na3d_sharded, try_split_tokens,
};
use burn_natten::plan::{Sizes, Target};
use burn_natten::{AttentionError, NeighborhoodOptions, try_na3d};

use crate::Failure;
use crate::cli::{Args, Choice, three};
use crate::common::flags::Precision;
use crate::devices;

/// What came out.
pub struct Report {
    args: Args,
    members: Vec<String>,
    estimate: Estimate,
    plan: Option<HaloPlan>,
    /// One device, all of them.
    times: [Times; 2],
    /// The largest difference of outputs and of gradients from those of one device, relative to the largest magnitude.
    differences: [f64; 2],
}

/// Medians.
#[derive(Clone, Copy)]
struct Times {
    forward: Duration,
    backward: Duration,
}

/// What is computed.
struct Problem {
    space: [usize; 3],
    options: NeighborhoodOptions<3>,
    sizes: Sizes,
    dtype: DType,
    repeats: usize,
}

/// Results, on one device.
struct Results {
    out: Tensor<6>,
    gradients: Vec<Tensor<6>>,
    times: Times,
}

impl From<AttentionError> for Failure {
    fn from(error: AttentionError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Runs and compares.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let args = args.resolved();
    let devices = devices::open(&args.devices)?;
    let problem = Problem {
        space: three("space", &args.space)?,
        options: NeighborhoodOptions::new(three("window", &args.window)?),
        sizes: Sizes { heads: args.heads, heads_kv: args.heads, ..Sizes::new(args.head_dim) },
        dtype: dtype(args.dtype),
        repeats: args.repeats,
    };
    for device in &devices {
        if !device.supports_dtype(problem.dtype) {
            let text = format!("--dtype: {device:?} does not compute in {:?}", problem.dtype);
            return Err(Failure::Usage(text));
        }
    }
    let estimate = choose(&args, &problem, devices.len())?;
    let split = estimate.split;
    let inputs = problem.inputs(&devices[0]);
    let alone = problem.run(&inputs, &devices[..1], split)?;
    let all = problem.run(&inputs, &devices, split)?;
    let gradients = all.gradients.into_iter().zip(alone.gradients);
    let differences = [
        difference(all.out, alone.out),
        gradients.map(|(got, want)| difference(got, want)).fold(0.0, f64::max),
    ];
    let plan = match split {
        Split::Halo { axis } => {
            let axes = problem.options.axes(problem.space)?;
            Some(HaloPlan::new(&axes[axis], &even_shards(problem.space[axis], devices.len()))?)
        }
        _ => None,
    };
    let times = [alone.times, all.times];
    Ok(Report { members: args.devices.clone(), args, estimate, plan, times, differences })
}

/// The split that is asked for, or the one that is expected to be the fastest.
fn choose(args: &Args, problem: &Problem, members: usize) -> Result<Estimate, Failure> {
    let (target, dtype) = (Target::Cuda { sm: 90 }, problem.dtype);
    let cluster = Cluster { members, target, dtype, link: Link::NVLINK };
    let all = estimates(&problem.sizes, problem.space, &problem.options, &cluster)?;
    let is_asked_for = |split: Split| match args.split {
        Choice::Auto => true,
        Choice::Heads => split == Split::Heads { axis: args.axis },
        Choice::Halo => split == Split::Halo { axis: args.axis },
    };
    let found = all.into_iter().find(|estimate| is_asked_for(estimate.split));
    found.ok_or_else(|| match args.split {
        Choice::Heads if !args.heads.is_multiple_of(members) => {
            let (heads, of) = (args.heads, "heads of key");
            Failure::Usage(format!("{of}: is {heads}, must be a multiple of {members} (members)"))
        }
        _ => Failure::Usage(format!("--devices: are {members}, which is more than the tokens")),
    })
}

impl Problem {
    /// Query, key, value, and the weights of a loss.
    fn inputs(&self, device: &Device) -> [Tensor<6>; 4] {
        let [depth, height, width] = self.space;
        let shape = [1, depth, height, width, self.sizes.heads, self.sizes.head_dim];
        let options = TensorCreationOptions::new(device.clone()).with_dtype(self.dtype);
        [(); 4].map(|()| Tensor::random(shape, Distribution::Normal(0.0, 1.0), options.clone()))
    }

    /// Both passes, as often as they are timed and once before.
    fn run(
        &self,
        inputs: &[Tensor<6>; 4],
        devices: &[Device],
        split: Split,
    ) -> Result<Results, Failure> {
        let Results { mut out, mut gradients, .. } = self.once(inputs, devices, split)?;
        let mut all = vec![];
        for _ in 0..self.repeats {
            let times;
            Results { out, gradients, times } = self.once(inputs, devices, split)?;
            all.push(times);
        }
        let median = |pass: fn(&Times) -> Duration| {
            let mut all: Vec<_> = all.iter().map(pass).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let times = Times {
            forward: median(|times| times.forward),
            backward: median(|times| times.backward),
        };
        Ok(Results { out, gradients, times })
    }

    /// Both passes. Shards are made, and joined, beyond what is timed.
    fn once(
        &self,
        inputs: &[Tensor<6>; 4],
        devices: &[Device],
        split: Split,
    ) -> Result<Results, Failure> {
        let axis = split.axis();
        let [query, key, value, weights] =
            inputs.each_ref().map(|input| self.leaves(input, devices, axis));
        let (leaves, weights) = ([query?, key?, value?], weights?);
        sync(devices)?;
        let start = Instant::now();
        let outs = self.forward(leaves.clone(), split)?;
        sync(devices)?;
        let forward = start.elapsed();

        let terms = outs.iter().zip(weights).map(|(out, weights)| (out.clone() * weights).sum());
        let terms = terms.map(|term| term.reshape([1, 1, 1])).collect();
        let loss = try_join_tokens(terms, &devices[0], 0)?.sum();
        sync(devices)?;
        let start = Instant::now();
        let tape = loss.backward();
        sync(devices)?;
        let times = Times { forward, backward: start.elapsed() };

        let join = |shards| try_join_tokens(shards, &devices[0], axis);
        let gradient = |shards: &Vec<Tensor<6>>| {
            let gradients: Option<_> = shards.iter().map(|shard| shard.grad(&tape)).collect();
            let missing = || Failure::Run("a gradient is missing".into());
            Ok::<_, Failure>(join(gradients.ok_or_else(missing)?)?)
        };
        let gradients = leaves.iter().map(gradient).collect::<Result<_, _>>()?;
        let out = join(outs.into_iter().map(Tensor::without_autodiff).collect())?;
        Ok(Results { out, gradients, times })
    }

    /// A tensor as the leaves of a graph, one for each device.
    fn leaves(
        &self,
        tensor: &Tensor<6>,
        devices: &[Device],
        axis: usize,
    ) -> Result<Vec<Tensor<6>>, Failure> {
        let shards = try_split_tokens(tensor.clone(), devices, axis)?;
        Ok(shards.into_iter().map(|shard| shard.autodiff().require_grad()).collect())
    }

    fn forward(
        &self,
        [query, key, value]: [Vec<Tensor<6>>; 3],
        split: Split,
    ) -> Result<Vec<Tensor<6>>, Failure> {
        if let ([query], [key], [value]) = (&query[..], &key[..], &value[..]) {
            let (query, key, value) = (query.clone(), key.clone(), value.clone());
            return Ok(vec![try_na3d(query, key, value, self.options.clone())?.out]);
        }
        let members = try_na3d_sharded(query, key, value, self.options.clone(), split)?;
        Ok(members.into_iter().map(|member| member.out).collect())
    }
}

fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
        Precision::Bf16 => DType::BF16,
    }
}

/// Waits for all devices, which have all begun by then.
fn sync(devices: &[Device]) -> Result<(), Failure> {
    let failed = |error: burn::backend::ExecutionError| Failure::Run(error.to_string());
    devices.iter().try_for_each(|device| device.flush().map_err(failed))?;
    devices.iter().try_for_each(|device| device.sync().map_err(failed))
}

/// The largest difference, relative to the largest magnitude.
fn difference(got: Tensor<6>, want: Tensor<6>) -> f64 {
    let largest = |tensor: Tensor<6>| f64::from(tensor.abs().max().into_scalar::<f32>());
    let magnitude = largest(want.clone()).max(f64::MIN_POSITIVE);
    largest(got - want) / magnitude
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Args { space, window, heads, head_dim, dtype, .. } = &self.args;
        let by = |numbers: &[usize]| {
            numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
        };
        let (space, window) = (by(space), by(window));
        let dtype = format!("{dtype:?}").to_lowercase();
        writeln!(
            f,
            "video     {space} tokens, window {window}, {heads} heads of {head_dim}, {dtype}"
        )?;
        writeln!(f, "members   {}", self.members.join(", "))?;
        writeln!(f, "split     {}", self.estimate.split)?;
        let megabytes = self.estimate.bytes as f64 / 1e6;
        writeln!(f, "sent      {megabytes:.3} MB forward, and as much backward")?;
        let [outputs, gradients] = self.differences;
        writeln!(f, "differs   {outputs:.1e} from one device, gradients {gradients:.1e}")?;
        if let Some(plan) = &self.plan {
            writeln!(f, "\n{plan}")?;
        }
        let [alone, all] = self.times;
        writeln!(f, "| pass     | one device | {} members | speed-up |", self.members.len())?;
        writeln!(f, "|----------|-----------:|----------:|---------:|")?;
        for (name, alone, all) in
            [("forward ", alone.forward, all.forward), ("backward", alone.backward, all.backward)]
        {
            let [alone, all] = [alone, all].map(|time| time.as_secs_f64() * 1e3);
            writeln!(f, "| {name} | {alone:7.2} ms | {all:6.2} ms | {:6.2} x |", alone / all)?;
        }
        Ok(())
    }
}
