use std::cell::RefCell;
use std::sync::RwLock;

use burn_natten_kernels::tiling::Tiling;

/// How much memory an implementation may take beyond its inputs and outputs.
///
/// Set with [`Context::with_memory`]; the guide says what each tier [takes](crate::guide::memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryPreference {
    /// Up to the size of the scores of all windows.
    #[default]
    Default,
    /// As little as possible, at the price of speed.
    Strict,
    /// Whatever is fastest.
    Unrestricted,
}

/// Settings that hold for a process, for a scope of a thread, or for one call.
///
/// [`Context::set_global`] sets the process, [`Context::scope`] a thread until the returned guard
/// is dropped, and the `with_context` of an operator's options a single call. A backward pass uses
/// the settings of its forward pass, wherever it runs.
///
/// ```rust
/// use burn_natten::{Context, MemoryPreference};
///
/// {
///     let strict = Context::current().with_memory(MemoryPreference::Strict);
///     let _scope = strict.scope();
///     assert_eq!(Context::current().memory(), MemoryPreference::Strict);
/// }
/// assert_eq!(Context::current().memory(), MemoryPreference::Default);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    deterministic: bool,
    memory: MemoryPreference,
    tiling: Option<Tiling>,
    autotune: bool,
    allow_tf32: bool,
    experimental_forward: bool,
    experimental_backward: bool,
    host_exchange: bool,
}

static GLOBAL: RwLock<Context> = RwLock::new(Context::new());

thread_local! {
    static SCOPES: RefCell<Vec<(u64, Context)>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    /// The settings of a new process: not deterministic, default memory,
    /// measured choices, no TF32, no experimental paths, no exchange through the host.
    pub const fn new() -> Self {
        Self {
            deterministic: false,
            memory: MemoryPreference::Default,
            tiling: None,
            autotune: true,
            allow_tf32: false,
            experimental_forward: false,
            experimental_backward: false,
            host_exchange: false,
        }
    }

    /// The settings in force on this thread: those of the innermost scope, or else of the process.
    pub fn current() -> Self {
        let scoped = SCOPES.with_borrow(|scopes| scopes.last().map(|(_, context)| *context));
        // A `Context` is plain data, so one left by a panicking writer is whole.
        scoped.unwrap_or_else(|| *GLOBAL.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Makes these the settings of the process, for every thread outside a scope.
    ///
    /// ```rust,standalone_crate
    /// use burn_natten::Context;
    ///
    /// Context::new().with_deterministic(true).set_global();
    /// assert!(std::thread::spawn(|| Context::current().deterministic()).join().unwrap());
    /// ```
    pub fn set_global(self) {
        *GLOBAL.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = self;
    }

    /// Makes these the settings of this thread until the guard is dropped. Scopes nest.
    ///
    /// ```rust
    /// use burn_natten::Context;
    ///
    /// let scope = Context::current().with_deterministic(true).scope();
    /// assert!(Context::current().deterministic());
    /// drop(scope);
    /// assert!(!Context::current().deterministic());
    /// ```
    #[must_use = "the settings end when the guard is dropped"]
    pub fn scope(self) -> ContextScope {
        let id = SCOPES.with_borrow_mut(|scopes| {
            let id = scopes.last().map_or(0, |(id, _)| id + 1);
            scopes.push((id, self));
            id
        });
        ContextScope { id, not_send: std::marker::PhantomData }
    }

    /// Requires bitwise equal results from run to run. The kernels that exist today always give them,
    /// those of the backward pass included, so that asking for them costs nothing but [measured
    /// choices](Self::with_autotune): a model, which always says the same, chooses among kernels that differ by rounding.
    pub const fn with_deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// Bounds the memory taken beyond inputs and outputs. The Reference tier gathers fewer or more
    /// keys at a time. The Hopper tier keeps gradients of the scores of long lines and large planes in its backward pass, up to 2 GiB, unless the memory is
    /// [`Strict`](MemoryPreference::Strict), and up to 16 GiB, also of large boxes, if it is [`Unrestricted`](MemoryPreference::Unrestricted). The kernels of the other tiers take little, and the same in any case.
    pub const fn with_memory(mut self, memory: MemoryPreference) -> Self {
        self.memory = memory;
        self
    }

    /// Asks for the schedule with these tiles, in both passes; the fastest by estimate without. Tiers
    /// that have no such schedule for a problem take their own. [`plan::explain`](crate::plan::explain) lists what
    /// there is.
    pub const fn with_tiling(mut self, tiling: Option<Tiling>) -> Self {
        self.tiling = tiling;
        self
    }

    /// Lets the TensorCore tier choose by measurement, where the crate is built with the feature `autotune`. On by default.
    ///
    /// In the first call with a problem whose lengths have not come up before, to the next power of two, up to
    /// four kernels of each pass are compiled and timed on the tensors of the call, which takes some seconds. Burn's feature `persistence`
    /// keeps on disk which one was the fastest, and with `compilation.cache` in `cubecl.toml` the compiled kernels, too. Without the setting, the feature, or where tiles or
    /// [deterministic](Self::with_deterministic) results are asked for, the choice is the model's, and the first call compiles one
    /// kernel of each pass.
    ///
    /// ```rust
    /// use burn_natten::Context;
    ///
    /// assert!(Context::new().autotune());
    /// Context::new().with_autotune(false).set_global();
    /// assert!(!Context::current().autotune());
    /// # Context::new().set_global();
    /// ```
    pub const fn with_autotune(mut self, autotune: bool) -> Self {
        self.autotune = autotune;
        self
    }

    /// Allows f32 inputs to be multiplied in TF32, in both passes: operands of the matrix products are
    /// rounded to the nearest number with 11 significant bits, a relative error of up to 4.9e-4 each, where f32
    /// has 6e-8. Inputs, outputs, gradients and the logsumexp stay f32 of the same shapes, and sums and the
    /// softmax are computed in f32. Off by default.
    ///
    /// With it [`Strategy::Auto`](crate::Strategy) and [`Strategy::TensorCore`](crate::Strategy) take the TensorCore
    /// tier for f32 on NVIDIA GPUs of compute capability 8.0 and later; elsewhere, and for other types, it changes
    /// nothing. Expect errors of the size of f16's, about 1e-3 of the largest magnitude, at the range of f32.
    /// The guide says [more](crate::guide::precision).
    ///
    /// ```rust
    /// use burn::tensor::DType;
    /// use burn_natten::plan::{Sizes, Target, explain};
    /// use burn_natten::{Context, Strategy, Tier};
    ///
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// let problem = Sizes::new(64).dense(1024, 1024, false, None)?;
    /// let tier = |context| {
    ///     let plan = explain(&problem, DType::F32, Target::Cuda { sm: 80 }, Strategy::Auto, context)?;
    ///     Ok::<_, burn_natten::AttentionError>(plan.chosen.tier)
    /// };
    /// assert_eq!(tier(Context::new())?, Tier::Portable);
    /// assert_eq!(tier(Context::new().with_allow_tf32(true))?, Tier::TensorCore);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_allow_tf32(mut self, allow: bool) -> Self {
        self.allow_tf32 = allow;
        self
    }

    /// Allows paths that have never run on real hardware, in the forward and the backward pass.
    /// Off by default. The kernels of the TensorCore tier for GPUs other than NVIDIA's are such paths; where only those
    /// of the forward pass are allowed, the Portable kernels compute the backward pass.
    pub const fn with_allow_experimental(mut self, forward: bool, backward: bool) -> Self {
        self.experimental_forward = forward;
        self.experimental_backward = backward;
        self
    }

    /// Allows the [operators of several devices](crate::parallel) to move tensors between CUDA devices through the host where they have
    /// no transport, which is NCCL's: a hundred times slower, and an error without this setting. Off by default. Devices of other
    /// kinds, and of different ones, have nothing but the host, and need no permission.
    pub const fn with_host_exchange(mut self, allow: bool) -> Self {
        self.host_exchange = allow;
        self
    }

    /// Whether kernels may be chosen by measurement.
    pub const fn autotune(&self) -> bool {
        self.autotune
    }

    /// Whether results must be bitwise equal from run to run.
    pub const fn deterministic(&self) -> bool {
        self.deterministic
    }

    /// The bound on memory beyond inputs and outputs.
    pub const fn memory(&self) -> MemoryPreference {
        self.memory
    }

    /// The tiles that are asked for.
    pub const fn tiling(&self) -> Option<Tiling> {
        self.tiling
    }

    /// Whether f32 inputs may be multiplied in TF32.
    pub const fn allow_tf32(&self) -> bool {
        self.allow_tf32
    }

    /// Whether CUDA devices without a transport may exchange tensors through the host.
    pub const fn host_exchange(&self) -> bool {
        self.host_exchange
    }

    /// Whether paths that have never run on real hardware are allowed: forward, backward.
    pub const fn allow_experimental(&self) -> (bool, bool) {
        (self.experimental_forward, self.experimental_backward)
    }
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

/// Restores the settings of a thread when it is dropped; see [`Context::scope`].
#[derive(Debug)]
pub struct ContextScope {
    id: u64,
    // The settings belong to a thread, so the guard stays on it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for ContextScope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.retain(|(id, _)| *id != self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_restore() {
        let outer = Context::new().with_deterministic(true);
        let inner = outer.with_autotune(false);
        let before = Context::current();
        {
            let _outer = outer.scope();
            assert_eq!(Context::current(), outer);
            {
                let _inner = inner.scope();
                assert!(!Context::current().autotune());
            }
            assert_eq!(Context::current(), outer);
            std::thread::spawn(move || assert_eq!(Context::current(), before))
                .join()
                .expect("another thread keeps its own settings");
        }
        assert_eq!(Context::current(), before);
    }

    #[test]
    fn guards_dropped_out_of_order_remove_their_own_settings() {
        let first = Context::new().with_deterministic(true);
        let second = first.with_memory(MemoryPreference::Strict);
        let guard_first = first.scope();
        let guard_second = second.scope();
        drop(guard_first);
        assert_eq!(Context::current(), second);
        drop(guard_second);
        assert_eq!(Context::current(), Context::new());
    }

    #[test]
    fn off_switches_off() {
        let on = Context::new()
            .with_deterministic(true)
            .with_allow_tf32(true)
            .with_host_exchange(true)
            .with_allow_experimental(true, true);
        assert!(on.allow_tf32() && !Context::new().allow_tf32());
        assert!(on.host_exchange() && !Context::new().host_exchange());
        let off = on
            .with_deterministic(false)
            .with_allow_tf32(false)
            .with_host_exchange(false)
            .with_allow_experimental(false, false);
        assert!(!off.deterministic() && !off.allow_tf32() && !off.host_exchange());
        assert_eq!(off.allow_experimental(), (false, false));
    }
}
