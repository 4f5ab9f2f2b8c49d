//! Calls of the library.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::Product;
use crate::KernelError;
use crate::native::launch::{self, Buffer, device_info};
use crate::native::stand_in;
use crate::view::check_buffer;

/// Most bytes that a product may take beside its operands, as NVIDIA advises for Hopper.
const MAX_WORKSPACE: usize = 32 << 20;

/// What is remembered of products; lengths that vary are new ones.
const MOST_KNOWN: usize = 4096;

/// That there is no kernel, which will not change. Memory that is lacking may.
const NOT_SUPPORTED: CublasError = CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);

/// What every operand begins at a multiple of, in bytes: no kernel of the library asks for more.
const ALIGNMENT: u32 = 16;

/// Whether products of the device behind a client can be computed by the library.
///
/// # Errors
///
/// [`KernelError::Device`]: the device is none of CUDA's, or the library is not installed.
pub fn is_available(client: &Client) -> Result<(), KernelError> {
    if stand_in::current().is_some() || device_info(client).is_none() {
        return Err(KernelError::Device("CUDA"));
    }
    // SAFETY: looks for the library and nothing else.
    static IS_PRESENT: LazyLock<bool> = LazyLock::new(|| unsafe { sys::is_culib_present() });
    match *IS_PRESENT {
        true => Ok(()),
        false => Err(KernelError::Device("libcublasLt where the loader looks (LD_LIBRARY_PATH)")),
    }
}

/// A linear layer on a device: `rows` tokens of `channels` elements to as many of `outputs`. Tensors are contiguous and of one type; they
/// are multiplied as they are and summed in f32.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// Of the device.
    pub client: &'a Client,
    /// Tokens.
    pub rows: usize,
    /// Elements of each.
    pub channels: usize,
    /// Elements of each result.
    pub outputs: usize,
    /// f16, bf16 or f32.
    pub dtype: ElemType,
}

impl Linear<'_> {
    /// `output = input * weight + bias`: `[rows, outputs]` of `[rows, channels]`, `[channels, outputs]` and `[outputs]`.
    ///
    /// Workspace: at most 32 MiB.
    ///
    /// # Errors
    ///
    /// As [`is_available`]; if the library has no kernel for the sizes and the type, a buffer is too small, or begins at no multiple of 16
    /// bytes. Then nothing was enqueued.
    pub fn forward(
        &self,
        input: &Handle,
        weight: &Handle,
        bias: Option<&Handle>,
        output: &Handle,
    ) -> Result<(), KernelError> {
        self.check("input", input, self.rows * self.channels)?;
        self.check("weight", weight, self.channels * self.outputs)?;
        bias.map_or(Ok(()), |bias| self.check("bias", bias, self.outputs))?;
        self.check("output", output, self.rows * self.outputs)?;
        self.multiply(Product::forward(self.shape()), [weight, input], bias, output)
    }

    /// `d_input = d_output * weight^T`: `[rows, channels]` of `[rows, outputs]` and `[channels, outputs]`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn input_gradient(
        &self,
        weight: &Handle,
        gradient: &Handle,
        of_input: &Handle,
    ) -> Result<(), KernelError> {
        self.check("weight", weight, self.channels * self.outputs)?;
        self.check("gradient", gradient, self.rows * self.outputs)?;
        self.check("gradient of the input", of_input, self.rows * self.channels)?;
        self.multiply(Product::of_input(self.shape()), [weight, gradient], None, of_input)
    }

    /// `d_weight = input^T * d_output`: `[channels, outputs]` of `[rows, channels]` and `[rows, outputs]`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn weight_gradient(
        &self,
        input: &Handle,
        gradient: &Handle,
        of_weight: &Handle,
    ) -> Result<(), KernelError> {
        self.check("input", input, self.rows * self.channels)?;
        self.check("gradient", gradient, self.rows * self.outputs)?;
        self.check("gradient of the weight", of_weight, self.channels * self.outputs)?;
        self.multiply(Product::of_weight(self.shape()), [gradient, input], None, of_weight)
    }

    fn shape(&self) -> [usize; 3] {
        [self.rows, self.channels, self.outputs]
    }

    fn check(
        &self,
        name: &'static str,
        handle: &Handle,
        elements: usize,
    ) -> Result<(), KernelError> {
        check_buffer(name, handle, elements * self.dtype.size())?;
        if !handle.offset_start.unwrap_or(0).is_multiple_of(u64::from(ALIGNMENT)) {
            let reason = "it begins at no multiple of 16 bytes";
            return Err(KernelError::Layout { name, reason });
        }
        Ok(())
    }

    fn multiply(
        &self,
        product: Product,
        [first, second]: [&Handle; 2],
        bias: Option<&Handle>,
        output: &Handle,
    ) -> Result<(), KernelError> {
        is_available(self.client)?;
        let call = Call { product, element: element(self.dtype)?, has_bias: bias.is_some() };
        let algorithm = call.algorithm(self.client).map_err(|error| {
            let Self { rows, channels, outputs, dtype, .. } = self;
            KernelError::Problem(format!(
                "a linear layer of {rows} tokens of {channels} channels to {outputs} in {dtype:?}: {error}"
            ))
        })?;
        let workspace = self.client.empty(algorithm.workspace.max(1));
        let mut buffers = vec![Buffer::read(first), Buffer::read(second)];
        buffers.extend([Buffer::written(output), Buffer::written(&workspace)]);
        buffers.extend(bias.map(Buffer::read));
        launch::call(self.client, "cublasLtMatmul", buffers, move |ordinal, addresses, stream| {
            // SAFETY: the buffers were checked against the product's sizes, and this is the device's thread.
            unsafe { call.enqueue(ordinal, &algorithm, addresses, stream.cast()) }
                .map_err(|error| launch::failed("cublasLtMatmul", error))
        });
        Ok(())
    }
}

fn element(dtype: ElemType) -> Result<sys::cudaDataType, KernelError> {
    match dtype {
        ElemType::Float(FloatKind::F16) => Ok(sys::cudaDataType::CUDA_R_16F),
        ElemType::Float(FloatKind::BF16) => Ok(sys::cudaDataType::CUDA_R_16BF),
        ElemType::Float(FloatKind::F32) => Ok(sys::cudaDataType::CUDA_R_32F),
        got => Err(KernelError::ElementType { known: "f16, bf16 and f32", got }),
    }
}

/// What decides on the library's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    product: Product,
    element: sys::cudaDataType,
    has_bias: bool,
}

/// A kernel of the library, and what it takes.
#[derive(Clone, Copy, Debug)]
struct Algorithm {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

thread_local! {
    /// The library's state of each device, on the thread that owns it; never destroyed.
    static LIBRARIES: RefCell<HashMap<u16, sys::cublasLtHandle_t>> = RefCell::default();
}

/// The library's state of the device whose context is current.
fn library(ordinal: u16) -> Result<sys::cublasLtHandle_t, CublasError> {
    if let Some(known) = LIBRARIES.with_borrow(|known| known.get(&ordinal).copied()) {
        return Ok(known);
    }
    let library = result::create_handle()?;
    LIBRARIES.with_borrow_mut(|known| known.insert(ordinal, library));
    Ok(library)
}

impl Call {
    /// What the library thinks is the fastest; it measures nothing. Asked once for each device, as long as it is among the latest.
    fn algorithm(self, client: &Client) -> Result<Algorithm, String> {
        type Known = HashMap<(u16, Call), Result<Algorithm, CublasError>>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let known = || KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let text = |error: CublasError| format!("cuBLASLt says {error}");
        let key = (client.service_id().device.index_id, self);
        if let Some(known) = known().get(&key) {
            return known.map_err(text);
        }
        // SAFETY: on the device's thread.
        let found = launch::ask(client, move |ordinal| unsafe { self.heuristic(ordinal) });
        let found = found.ok_or("the device's thread does not answer")?;
        let is_lasting = |error: CublasError| error == NOT_SUPPORTED;
        if found.is_ok() || found.is_err_and(is_lasting) {
            let mut known = known();
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(key, found);
        }
        found.map_err(text)
    }

    /// # Safety
    ///
    /// The context of the device has to be current.
    unsafe fn heuristic(&self, ordinal: u16) -> Result<Algorithm, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let (library, matrices) = (library(ordinal)?, Matrices::new(self)?);
        let preference = Preference(result::create_matmul_pref()?);
        // Parts of a sum are added up in a workspace, in f32: not in the output, as they arrive or rounded.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        // SAFETY: what was made here lives, and values are of the types that their attributes have.
        unsafe {
            preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(MAX_WORKSPACE as u64))?;
            preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
            for operand in [
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                preference.set(operand, &ALIGNMENT)?;
            }
            let [first, second, output] = matrices.layouts.each_ref().map(|layout| layout.0);
            let found = result::get_matmul_algo_heuristic(
                library,
                matrices.operation.0,
                first,
                second,
                output,
                output,
                preference.0,
            )?;
            Ok(Algorithm { algorithm: found.algo, workspace: found.workspaceSize })
        }
    }

    /// # Safety
    ///
    /// On the thread of the device with its context current; addresses of the factors, the output, the workspace and the bias, if there is
    /// one, are those of memory as large as they need.
    unsafe fn enqueue(
        &self,
        ordinal: u16,
        algorithm: &Algorithm,
        addresses: &[u64],
        stream: sys::cudaStream_t,
    ) -> Result<(), CublasError> {
        let (library, matrices) = (library(ordinal)?, Matrices::new(self)?);
        let [first, second, output] = matrices.layouts.each_ref().map(|layout| layout.0);
        let (one, zero) = (1.0f32, 0.0f32);
        let at = |which: usize| addresses[which] as *mut c_void;
        // SAFETY: as the caller promises; what was made here lives until the call returns, and nothing refers to it then.
        unsafe {
            if self.has_bias {
                use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                matrices.operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &addresses[4])?;
            }
            result::matmul(
                library,
                matrices.operation.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at(0),
                first,
                at(1),
                second,
                at(2),
                output,
                at(2),
                output,
                &algorithm.algorithm,
                at(3),
                algorithm.workspace,
                stream,
            )
        }
    }
}

/// A product in the library's terms.
struct Matrices {
    operation: Operation,
    /// Of the two factors and the result.
    layouts: [Layout; 3],
}

impl Matrices {
    fn new(call: &Call) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let scale = sys::cudaDataType::CUDA_R_32F;
        let operation = Operation(result::create_matmul_desc(compute, scale)?);
        // `CUBLAS_OP_N` and `CUBLAS_OP_T`.
        let turned = i32::from;
        let epilogue = match call.has_bias {
            true => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32,
            false => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT as u32,
        };
        let [first, second] = call.product.is_transposed.map(turned);
        // SAFETY: it lives, and values are of the types that their attributes have.
        unsafe {
            operation.set(CUBLASLT_MATMUL_DESC_TRANSA, &first)?;
            operation.set(CUBLASLT_MATMUL_DESC_TRANSB, &second)?;
            operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        let layout = |[rows, columns]: [usize; 2]| {
            let layout = result::create_matrix_layout(
                call.element,
                rows as u64,
                columns as u64,
                rows as i64,
            );
            layout.map(Layout)
        };
        let [first, second, output] = call.product.stored().map(layout);
        Ok(Self { operation, layouts: [first?, second?, output?] })
    }
}

/// What the library has made, until it is dropped.
struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    /// # Safety
    ///
    /// `T` has to be the attribute's type.
    unsafe fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        let value = (value as *const T).cast();
        // SAFETY: it lives.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, value, size_of::<T>()) }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made by the library, and destroyed once. There is nothing to be done where that fails.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// What the library has made, until it is dropped.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: as of `Operation`.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What the library has made, until it is dropped.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// # Safety
    ///
    /// `T` has to be the attribute's type.
    unsafe fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        let value = (value as *const T).cast();
        // SAFETY: it lives.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value, size_of::<T>()) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as of `Operation`.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
