//! NVIDIA's instructions under CubeCL's compiler through LLVM.
//!
//! That compiler has no inline assembly. It lowers every operation that can rewrite itself into LLVM's
//! dialect, though, and an operation of another crate can as well: here into calls of LLVM's intrinsics.

use cubecl::ir::Scope;
use cubecl::prelude::{CubePrimitive, HasValue, NativeExpand};
use cubecl_core::ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl_llvm::shared::intrinsic::i32_const_op;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use pliron::builtin::op_interfaces::{NOpdsInterface, NResultsInterface, OneResultInterface};
use pliron::context::Context;
use pliron::derive::{op_interface_impl, pliron_op};
use pliron::irbuild::dialect_conversion::{DialectConversionRewriter, OperandsInfo};
use pliron::irbuild::inserter::Inserter;
use pliron::irbuild::rewriter::Rewriter;
use pliron::op::Op;
use pliron::operation::Operation;
use pliron::opts::dce::SideEffects;
use pliron::result::Result;
use pliron::r#type::Typed;
use pliron::value::Value;
use pliron_llvm::op_interfaces::CastOpInterface;
use pliron_llvm::ops::{AddrSpaceCastOp, CallIntrinsicOp};
use pliron_llvm::types::{FuncType, PointerType, VoidType};

/// A power of two, to the 22 bits of the instruction, with subnormal numbers taken for zero.
#[pliron_op(
    name = "natten.exp2",
    format = "$0 ` : ` type($0)",
    interfaces = [NResultsInterface<1>, OneResultInterface, NOpdsInterface<1>],
    verifier = "succ"
)]
pub struct Exp2Op;

impl Exp2Op {
    fn new(ctx: &mut Context, input: Value) -> Self {
        let result = input.get_type(ctx);
        let info = Self::get_concrete_op_info();
        let op = Operation::new(ctx, info, vec![result], vec![input], vec![], 0);
        Self { op }
    }
}

#[op_interface_impl]
impl ToLLVMDialect for Exp2Op {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _: &OperandsInfo,
    ) -> Result<()> {
        let input = self.get_operation().deref(ctx).get_operand(0);
        let float = input.get_type(ctx);
        let signature = FuncType::get(ctx, float, vec![float], false);
        let name = "llvm.nvvm.ex2.approx.ftz.f".to_string();
        let call = CallIntrinsicOp::new(ctx, name.into(), signature, vec![input]);
        rewriter.insert_op(ctx, &call);
        let result = call.get_result(ctx);
        rewriter.replace_operation_with_values(ctx, self.get_operation(), vec![result]);
        Ok(())
    }
}

#[op_interface_impl]
impl SideEffects for Exp2Op {
    fn has_side_effects(&self, _: &Context) -> bool {
        false
    }
}

#[op_interface_impl]
impl MemoryEffectsOp for Exp2Op {
    fn memory_effects(&self, _: &Context) -> Vec<MemoryEffect> {
        vec![]
    }
}

/// LLVM's numbers of address spaces.
const GLOBAL: u32 = 1;
/// LLVM's numbers of address spaces.
const SHARED: u32 = 3;

/// An operation that reads or writes memory and gives nothing back; `$lower` makes calls of it, from its operands.
#[rustfmt::skip]
macro_rules! operation {
    ($(#[$doc:meta])* $op:ident, $name:literal, $lower:expr) => {
        $(#[$doc])*
        #[pliron_op(
            name = $name,
            format = "operands(CharSpace(`,`))",
            interfaces = [NResultsInterface<0>],
            verifier = "succ"
        )]
        pub struct $op;

        impl $op {
            fn new(ctx: &mut Context, operands: Vec<Value>) -> Self {
                let info = Self::get_concrete_op_info();
                Self { op: Operation::new(ctx, info, vec![], operands, vec![], 0) }
            }
        }

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _: &OperandsInfo,
            ) -> Result<()> {
                let operands: Vec<Value> = self.get_operation().deref(ctx).operands().collect();
                let lower: fn(&mut Context, &mut DialectConversionRewriter, Vec<Value>) = $lower;
                lower(ctx, rewriter, operands);
                rewriter.erase_operation(ctx, self.get_operation());
                Ok(())
            }
        }

        #[op_interface_impl]
        impl MemoryEffectsOp for $op {
            fn memory_effects(&self, _: &Context) -> Vec<MemoryEffect> {
                vec![MemoryEffect::Opaque]
            }
        }
    };
}

operation!(
    /// Begins to copy 4 bytes from the first operand, in global memory, to the second, in shared memory.
    Copy4Op,
    "natten.copy4",
    |ctx, rewriter, operands| copy(ctx, rewriter, "ca.shared.global.4", operands)
);
operation!(
    /// The same of 8 bytes.
    Copy8Op,
    "natten.copy8",
    |ctx, rewriter, operands| copy(ctx, rewriter, "ca.shared.global.8", operands)
);
operation!(
    /// The same of 16 bytes.
    Copy16Op,
    "natten.copy16",
    |ctx, rewriter, operands| copy(ctx, rewriter, "cg.shared.global.16", operands)
);
operation!(
    /// Waits until the copies that this unit has begun are done.
    WaitOp,
    "natten.wait_copies",
    |ctx, rewriter, operands| call(ctx, rewriter, "llvm.nvvm.cp.async.wait.all", operands)
);
operation!(
    /// Arrives at the barrier, of the units of two planes, that the operand numbers.
    ArriveOp,
    "natten.arrive",
    |ctx, rewriter, operands| barrier(ctx, rewriter, "arrive", operands)
);
operation!(
    /// Waits at such a barrier.
    MeetOp,
    "natten.meet",
    |ctx, rewriter, operands| barrier(ctx, rewriter, "sync", operands)
);

/// Inserts an asynchronous copy.
fn copy(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    kind: &str,
    operands: Vec<Value>,
) {
    let source = in_space(ctx, rewriter, operands[0], GLOBAL);
    let destination = in_space(ctx, rewriter, operands[1], SHARED);
    call(ctx, rewriter, &format!("llvm.nvvm.cp.async.{kind}"), vec![destination, source]);
}

/// Inserts a barrier of 64 units.
fn barrier(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    kind: &str,
    mut operands: Vec<Value>,
) {
    let units = i32_const_op(ctx, 64);
    rewriter.insert_op(ctx, &units);
    operands.push(units.get_result(ctx));
    call(ctx, rewriter, &format!("llvm.nvvm.barrier.cta.{kind}.aligned.count"), operands);
}

/// A pointer as one into an address space.
fn in_space(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    pointer: Value,
    space: u32,
) -> Value {
    let wanted = PointerType::get(ctx, space).into();
    if pointer.get_type(ctx) == wanted {
        return pointer;
    }
    let cast = AddrSpaceCastOp::new(ctx, pointer, wanted);
    rewriter.insert_op(ctx, &cast);
    cast.get_result(ctx)
}

/// Inserts the call of an intrinsic that gives nothing back.
fn call(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    name: &str,
    arguments: Vec<Value>,
) {
    let types = arguments.iter().map(|argument| argument.get_type(ctx)).collect();
    let nothing = VoidType::get(ctx).into();
    let signature = FuncType::get(ctx, nothing, types, false);
    let call = CallIntrinsicOp::new(ctx, name.to_string().into(), signature, arguments);
    rewriter.insert_op(ctx, &call);
}

/// A power of two, by [`Exp2Op`].
pub(super) fn exp2_approximate(_argument: f32) -> f32 {
    cubecl::unexpanded!()
}

/// What CubeCL makes of [`exp2_approximate()`].
pub(super) mod exp2_approximate {
    use super::*;
    use cubecl::prelude::*;

    pub fn expand(scope: &Scope, argument: NativeExpand<f32>) -> NativeExpand<f32> {
        let argument = argument.read_value(scope);
        let op = Exp2Op::new(scope.ctx_mut(), argument);
        scope.register_with_result(&op).into()
    }
}

/// Begins to copy the first `bytes` bytes, 4, 8 or 16, of a slice in global memory to one in shared memory.
pub(super) fn begin_copy<C: CubePrimitive>(_source: &[C], _destination: &mut [C], _bytes: u32) {
    cubecl::unexpanded!()
}

/// What CubeCL makes of [`begin_copy()`].
pub(super) mod begin_copy {
    use super::*;
    use cubecl::prelude::*;

    pub fn expand<C: CubePrimitive>(
        scope: &Scope,
        source: &SliceExpand<C>,
        destination: &mut SliceExpand<C>,
        bytes: u32,
    ) {
        // SAFETY: the copy stays inside what the callers have sliced.
        let [source, destination] = unsafe {
            [
                (*source.__expand_as_ptr_method(scope)).value(scope),
                (*destination.__expand_as_ptr_method(scope)).value(scope),
            ]
        };
        let ctx = scope.ctx_mut();
        match bytes {
            4 => scope.register(&Copy4Op::new(ctx, vec![source, destination])),
            8 => scope.register(&Copy8Op::new(ctx, vec![source, destination])),
            _ => scope.register(&Copy16Op::new(ctx, vec![source, destination])),
        }
    }
}

/// Waits until the copies that this unit has begun are done.
pub(super) fn wait_copies() {
    cubecl::unexpanded!()
}

/// What CubeCL makes of [`wait_copies()`].
pub(super) mod wait_copies {
    use super::*;

    pub fn expand(scope: &Scope) {
        scope.register(&WaitOp::new(scope.ctx_mut(), vec![]));
    }
}

/// Arrives at a barrier of two planes, and goes on.
pub(super) fn arrive(_barrier: u32) {
    cubecl::unexpanded!()
}

/// What CubeCL makes of [`arrive()`].
pub(super) mod arrive {
    use super::*;
    use cubecl::prelude::*;

    pub fn expand(scope: &Scope, barrier: NativeExpand<u32>) {
        let barrier = barrier.read_value(scope);
        scope.register(&ArriveOp::new(scope.ctx_mut(), vec![barrier]));
    }
}

/// Waits for the other plane at a barrier of two.
pub(super) fn meet(_barrier: u32) {
    cubecl::unexpanded!()
}

/// What CubeCL makes of [`meet()`].
pub(super) mod meet {
    use super::*;
    use cubecl::prelude::*;

    pub fn expand(scope: &Scope, barrier: NativeExpand<u32>) {
        let barrier = barrier.read_value(scope);
        scope.register(&MeetOp::new(scope.ctx_mut(), vec![barrier]));
    }
}
