//! How each tier works through a problem. A new tier is one line in [`candidates`].

mod native;

use std::collections::HashSet;

use burn::tensor::DType;
use burn_natten_kernels::cost::{Cost, DeviceModel};
use burn_natten_kernels::portable;
use burn_natten_kernels::slicing::Slices;
use burn_natten_kernels::tensor_core;
use burn_natten_kernels::tiling::Tiling;
use burn_natten_kernels::{MAX_RANK, Problem};

use super::{BackwardKernel, Candidate, Target};
use crate::backend::{Plan, accumulator, reference};
use crate::{Context, Tier};

/// Neighboring queries, or keys, whose scores the Flex tier computes together.
pub(crate) const FLEX_QUERIES: usize = 4;

/// Share of the matrix units' rate that `mma.sync` reaches on GPUs whose own instruction is another one: 490 of 790 TFLOP/s
/// on an H200.
const MMA_SYNC: f64 = 0.62;

/// Exponentials a second: 16 a cycle and multiprocessor of an H200.
const EXPONENTIALS: f64 = 3.6e12;

/// Seconds of a tile besides its steps, 4 us as in the Hopper kernels, where two cubes run on each of 132 multiprocessors.
const TILE_LATENCY: f64 = 4e-6 / 264.0;

/// What a tier is asked to compute.
struct Request<'a> {
    plan: &'a Plan,
    problem: &'a Problem,
    dtype: DType,
    device: &'a DeviceModel,
    context: Context,
    target: Target,
}

/// The ways in which the first tier of a plan can compute its problem, the one that it takes first.
pub(super) fn candidates(plan: &Plan, target: Target) -> Vec<Candidate> {
    let device = &target.device_model();
    let Plan { problem, dtype, context, strategy, .. } = plan;
    let (dtype, context, strategy, tier) = (*dtype, *context, *strategy, plan.forward.first());
    let request = Request { plan, problem, dtype, device, context, target };
    let schedules = match tier {
        Tier::Reference => vec![reference_schedule(&request)],
        Tier::Flex => vec![flex_schedule(&request)],
        Tier::Portable => vec![portable_schedule(&request)],
        Tier::TensorCore => tensor_core_schedules(&request),
        Tier::Hopper => native::hopper(&request),
        Tier::Blackwell => native::blackwell(&request),
    };
    schedules
        .into_iter()
        .map(|Schedule { name, tiling, asked, forward, backward, kernels, workspace }| Candidate {
            tier,
            strategy,
            context: context.with_tiling(asked),
            schedule: name,
            tiling,
            count: tiling.map(|tiling| tiling.count(problem)),
            forward,
            backward,
            backward_kernels: kernels,
            backward_workspace: workspace,
        })
        .collect()
}

/// A candidate, without what is the same for all of its tier.
struct Schedule {
    name: String,
    tiling: Option<Tiling>,
    /// The tiling that has to be asked for.
    asked: Option<Tiling>,
    forward: Cost,
    backward: Cost,
    kernels: Vec<BackwardKernel>,
    workspace: Option<u64>,
}

impl Schedule {
    /// The only one of a tier, which plans no kernels of its backward pass.
    fn only(name: String, tiling: Option<Tiling>, (forward, backward): (Cost, Cost)) -> Self {
        Self { name, tiling, asked: None, forward, backward, kernels: vec![], workspace: None }
    }
}

impl Request<'_> {
    /// The costs of kernels that execute these operations on this device, forward and backward,
    /// and meet every tensor once.
    fn costs(&self, executed: [u64; 2], device: &DeviceModel) -> (Cost, Cost) {
        let size = self.dtype.size();
        let forward = Cost::forward(self.problem, None, size, device);
        let backward = Cost::backward(self.problem, None, size, device);
        let cost = |cost: Cost, executed| Cost::new(cost.flops, executed, cost.bytes, device);
        (cost(forward, executed[0]), cost(backward, executed[1]))
    }
}

/// Gathers the keys of every window, some of a window at a time, multiplies and sums.
fn reference_schedule(request: &Request<'_>) -> Schedule {
    let problem = request.problem;
    let device = request.device.without_matrix_units();
    let pairs = (problem.queries() * reference::keys_per_window(problem)) as u64
        + (problem.queries() * problem.additional) as u64;
    let pairs = pairs * problem.batch as u64;
    let dims = (problem.head_dim + problem.head_dim_v) as u64;
    let executed = 2 * problem.heads as u64 * pairs * dims;
    // For each pair and product a key row is gathered (read, written) and read once more, and the
    // product with the query row is written and read to be summed. A backward pass has 5 products
    // for the 2 of the forward pass.
    let rows = (3 * problem.heads_kv + 2 * problem.heads) as u64;
    let moved = pairs * rows * dims * accumulator(request.dtype).size() as u64;
    let (forward, backward) = request.costs([executed, executed / 2 * 5], &device);
    let with = |cost: Cost, moved: u64| {
        Cost::new(cost.flops, cost.executed_flops, cost.bytes + moved, &device)
    };
    let at_a_time = reference::keys_at_a_time(problem, request.context.memory());
    let name = match at_a_time {
        1 => "one key of each window at a time".to_string(),
        keys => format!("{keys} keys of each window at a time"),
    };
    Schedule::only(name, None, (with(forward, moved), with(backward, moved / 2 * 5)))
}

/// Four queries of a line with the union of their windows; backward once by queries, once by keys, seven products, of which strips save two.
fn flex_schedule(request: &Request<'_>) -> Schedule {
    let problem = request.problem;
    let tiling = Tiling { q_tile: [1, 1, FLEX_QUERIES], kv_tile: [1; MAX_RANK] };
    let forward = Cost::forward(problem, Some(&tiling), 1, request.device).executed_flops;
    // 2 products forward; backward 3 for the queries and 4 for the keys, whose unions of visitors
    // hold about as much as the unions of windows.
    let executed = [forward, forward / 2 * 7];
    // A vector holds half as many numbers in f64.
    let slower = if request.dtype == DType::F64 { 2.0 } else { 1.0 };
    let device =
        DeviceModel { matmul_flops: request.device.matmul_flops / slower, ..*request.device };
    let name = format!("{FLEX_QUERIES} queries of a line");
    Schedule::only(name, Some(tiling), request.costs(executed, &device))
}

/// A query row, or a slice of one, a unit; or tiles in shared memory, where they have been timed or are allowed. Backward
/// once by queries, once by keys.
fn portable_schedule(request: &Request<'_>) -> Schedule {
    let problem = request.problem;
    let device = request.device.without_matrix_units();
    let nvidia = request.target.capabilities().tensor_cores.filter(|has| has.instruction.is_mma());
    let limits = match nvidia {
        Some(has) => {
            portable::Limits { shared_memory: has.shared_memory, ..portable::Limits::HOPPER }
        }
        // As every other GPU has them. On CPUs, and on those, nothing runs by tiles unasked.
        None => portable::Limits { allows_tiles: false, ..portable::Limits::WEBGPU },
    };
    let (untried, _) = request.context.allow_experimental();
    if let portable::Way::Tiles(blueprint) = portable::plan(problem, &limits.or_tiles(untried)) {
        let tiling = blueprint.tiling();
        let executed = Cost::forward(problem, Some(&tiling), 1, &device).executed_flops;
        // 2 products forward, 7 backward.
        let costs = request.costs([executed, executed / 2 * 7], &device);
        return Schedule::only(blueprint.summary(), Some(tiling), costs);
    }
    let slices = Slices::of(problem);
    let costs = request.costs(slices.executed_flops(problem), &device);
    let name = match slices.forward {
        1 => "a query a thread".to_string(),
        slices => format!("a query in {slices} threads"),
    };
    Schedule::only(name, Some(Tiling::square([1; MAX_RANK])), costs)
}

/// What [`tensor_core::candidates`] has, one of each tiling, the fastest by its estimate first, but before
/// it the tiling that the context asks for.
fn tensor_core_schedules(request: &Request<'_>) -> Vec<Schedule> {
    let problem = request.problem;
    let tensor_cores = request.target.capabilities().tensor_cores;
    let is_tf32 = request.dtype == DType::F32;
    let capability = match is_tf32 {
        true => tensor_cores.and_then(|capability| capability.with_tf32()),
        false => tensor_cores,
    };
    let Some(capability) = capability else { return vec![] };
    // Matrix units multiply half as many elements of twice the size; and from Hopper on, the instruction of these kernels
    // does not reach their rate.
    let size = if is_tf32 { 0.5 } else { 1.0 };
    let share = if matches!(request.target, Target::Cuda { sm: 90.. }) { MMA_SYNC } else { 1.0 };
    let matmul_flops = request.device.matmul_flops * size * share;
    let device = &DeviceModel { matmul_flops, ..*request.device };
    let vector = tensor_core::widest_vector(problem);
    let mut blueprints: Vec<_> = tensor_core::candidates(problem, &capability, vector)
        .into_iter()
        .map(|blueprint| (tensor_core::estimate(&blueprint, problem), blueprint))
        .collect();
    let asked = request.context.tiling();
    blueprints.sort_by(|(a, one), (b, other)| {
        let unasked = |blueprint: &tensor_core::Blueprint| Some(blueprint.tiling()) != asked;
        unasked(one).cmp(&unasked(other)).then(a.total_cmp(b))
    });
    let mut seen = HashSet::new();
    blueprints.retain(|(_, blueprint)| seen.insert(blueprint.tiling()));
    let schedule = |(number, (_, blueprint)): (usize, (f64, tensor_core::Blueprint))| {
        let tiling = blueprint.tiling();
        let is_asked = number > 0 || asked == Some(tiling);
        let size = request.dtype.size();
        // Planes compute their exponentials between their products, not beside them; backward in two kernels.
        let tiles = (problem.batch * problem.heads) as f64 * tiling.count(problem).q_tiles as f64;
        let as_it_runs = |cost: Cost, products: u64, kernels: u64| {
            let dims = (problem.head_dim + problem.head_dim_v) as u64;
            let scores = (kernels * cost.executed_flops / (products * dims)) as f64;
            let arithmetic = cost.executed_flops as f64 / device.matmul_flops
                + scores / EXPONENTIALS
                + tiles * kernels as f64 * TILE_LATENCY;
            Cost { seconds: cost.seconds.max(arithmetic), ..cost }
        };
        let forward = Cost::forward(problem, Some(&tiling), size, device);
        let backward = Cost::backward(problem, Some(&tiling), size, device);
        let costs = match request.target {
            Target::Cuda { .. } => (as_it_runs(forward, 2, 1), as_it_runs(backward, 5, 2)),
            _ => (forward, backward),
        };
        let schedule = Schedule::only(blueprint.summary(), Some(tiling), costs);
        Schedule { asked: is_asked.then_some(tiling), ..schedule }
    };
    blueprints.into_iter().enumerate().map(schedule).collect()
}
