//! Contexts, and the programs that are loaded into them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

use cubecl_core::server::ServerError;
use cudarc::driver::{result, sys};

use super::{Kernel, failed};

/// Functions by device, program and name, and the bytes of dynamic shared memory that each may be launched with.
type Functions = HashMap<(u16, Arc<str>, &'static CStr), (sys::CUfunction, u32)>;

thread_local! {
    /// The primary context of each device. The server retains it, too.
    static CONTEXTS: RefCell<HashMap<u16, sys::CUcontext>> = RefCell::default();
    /// Those that have been loaded.
    static FUNCTIONS: RefCell<Functions> = RefCell::default();
}

pub(super) fn make_current(ordinal: u16) -> Result<(), ServerError> {
    let context = match CONTEXTS.with_borrow(|contexts| contexts.get(&ordinal).copied()) {
        Some(context) => context,
        None => {
            let device = result::device::get(i32::from(ordinal))
                .map_err(|error| failed("cuDeviceGet", error))?;
            // SAFETY: `device` comes from the driver; never released, as the server's own.
            let context = unsafe { result::primary_ctx::retain(device) }
                .map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
            CONTEXTS.with_borrow_mut(|contexts| contexts.insert(ordinal, context));
            context
        }
    };
    // SAFETY: a primary context that is retained.
    unsafe { result::ctx::set_current(context) }.map_err(|error| failed("cuCtxSetCurrent", error))
}

/// The entry function of a kernel, loaded into the current context at its first use. Launches of one function may differ in shared memory.
pub(super) fn function(ordinal: u16, kernel: &Kernel) -> Result<sys::CUfunction, ServerError> {
    let key = (ordinal, kernel.cubin.key.clone(), kernel.entry);
    let known = FUNCTIONS.with_borrow(|functions| functions.get(&key).copied());
    let function = match known {
        Some((function, most)) if kernel.shared_memory <= most => return Ok(function),
        Some((function, _)) => function,
        // SAFETY: the image is a whole cubin, which the driver copies; the module is never unloaded.
        None => unsafe {
            let module = result::module::load_data(kernel.cubin.image.as_ptr().cast())
                .map_err(|error| failed("cuModuleLoadData", error))?;
            result::module::get_function(module, kernel.entry.to_owned())
                .map_err(|error| failed("cuModuleGetFunction", error))?
        },
    };
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: `function` belongs to a module that stays loaded.
    unsafe {
        result::function::set_function_attribute(function, attribute, kernel.shared_memory as i32)
    }
    .map_err(|error| failed("cuFuncSetAttribute", error))?;
    FUNCTIONS.with_borrow_mut(|functions| functions.insert(key, (function, kernel.shared_memory)));
    Ok(function)
}
