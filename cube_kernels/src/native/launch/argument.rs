//! Arguments of a kernel, and how the driver takes them.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cubecl_core::server::ServerError;
use cudarc::driver::{result, sys};

use super::{PLACE, failed};

/// The element type of a view for TMA, and how its boxes lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapElement {
    /// Half precision, swizzled in rows of 128 or 64 bytes: as wide as the box is.
    F16,
    /// bfloat16, swizzled likewise.
    Bf16,
    /// Single precision, densely.
    F32,
}

/// A five-dimensional view for TMA; the innermost dimension comes first and is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Which of the launch's buffers.
    pub buffer: usize,
    /// Bytes from the buffer's start to the view's.
    pub offset: usize,
    /// Type of the elements.
    pub element: MapElement,
    /// Elements.
    pub sizes: [u64; 5],
    /// Bytes between neighbors of the outer dimensions.
    pub strides: [u64; 4],
    /// Elements that one load brings.
    pub tile: [u32; 5],
    /// Distance of the elements that a load brings.
    pub steps: [u32; 5],
}

impl TensorMap {
    /// Bytes of a row of shared memory within which pieces of 16 bytes change places; 0 for none.
    pub fn swizzle(&self) -> u32 {
        match self.element {
            MapElement::F16 | MapElement::Bf16 => 2 * self.tile[0],
            MapElement::F32 => 0,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone)]
pub enum Argument {
    /// A tensor map, passed by value.
    TensorMap(TensorMap),
    /// A structure, passed by value as 8-byte words.
    Struct {
        /// Its contents.
        words: Vec<u64>,
        /// Words that are to hold the address of a buffer: (word, buffer, bytes from its start).
        pointers: Vec<(usize, usize, usize)>,
    },
}

impl Argument {
    /// The same with an address that lies so many bytes behind its buffer's start.
    pub fn behind(mut self, word: usize, bytes: usize) -> Self {
        if let Self::Struct { pointers, .. } = &mut self {
            pointers[word].2 = bytes;
        }
        self
    }

    /// Has a structure end with another one.
    ///
    /// # Panics
    ///
    /// If one of them is a map.
    pub fn append(&mut self, last: Self) {
        let (Self::Struct { words, pointers }, Self::Struct { words: more, pointers: places }) =
            (self, last)
        else {
            panic!("a map has no fields");
        };
        let begin = words.len();
        words.extend(more);
        pointers
            .extend(places.into_iter().map(|(word, buffer, byte)| (begin + word, buffer, byte)));
    }

    /// Bytes that it takes among the contents of a buffer.
    pub fn places(&self) -> usize {
        let bytes = match self {
            Self::TensorMap(_) => PLACE,
            Self::Struct { words, .. } => size_of::<u64>() * words.len(),
        };
        bytes.next_multiple_of(PLACE)
    }
}

/// An argument with its addresses, in memory that the driver copies it from.
pub(super) enum Value {
    Map(Box<sys::CUtensorMap>),
    Words(Vec<u64>),
}

/// Writes the bytes of an argument as the driver passes them to kernels.
pub(super) fn append(
    argument: &Argument,
    addresses: &[u64],
    bytes: &mut Vec<u8>,
) -> Result<(), ServerError> {
    match argument {
        Argument::Struct { words, pointers } => {
            let begin = bytes.len();
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            for &(word, buffer, offset) in pointers {
                let at = begin + size_of::<u64>() * word;
                let address = addresses[buffer] + offset as u64;
                bytes[at..at + size_of::<u64>()].copy_from_slice(&address.to_ne_bytes());
            }
        }
        Argument::TensorMap(map) => {
            let map = encoded(map, addresses)?;
            // SAFETY: a map is 128 bytes, all of which the driver wrote.
            let map = unsafe {
                core::slice::from_raw_parts(
                    (&raw const map).cast::<u8>(),
                    size_of::<sys::CUtensorMap>(),
                )
            };
            bytes.extend_from_slice(map);
        }
    }
    Ok(())
}

pub(super) fn value(argument: &Argument, addresses: &[u64]) -> Result<Value, ServerError> {
    match argument {
        Argument::Struct { words, pointers } => {
            let mut words = words.clone();
            for &(word, buffer, offset) in pointers {
                words[word] = addresses[buffer] + offset as u64;
            }
            Ok(Value::Words(words))
        }
        Argument::TensorMap(map) => Ok(Value::Map(Box::new(encoded(map, addresses)?))),
    }
}

fn encoded(map: &TensorMap, addresses: &[u64]) -> Result<sys::CUtensorMap, ServerError> {
    encode(map, addresses[map.buffer] + map.offset as u64)
        .map_err(|error| failed(&format!("cuTensorMapEncodeTiled of {map:?}"), error))
}

fn encode(map: &TensorMap, address: u64) -> Result<sys::CUtensorMap, result::DriverError> {
    use sys::CUtensorMapDataType::*;
    use sys::CUtensorMapSwizzle::*;
    let dtype = match map.element {
        MapElement::F16 => CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        MapElement::Bf16 => CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        MapElement::F32 => CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    };
    let swizzle = match map.swizzle() {
        0 => CU_TENSOR_MAP_SWIZZLE_NONE,
        64 => CU_TENSOR_MAP_SWIZZLE_64B,
        _ => CU_TENSOR_MAP_SWIZZLE_128B,
    };
    let mut encoded = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: all arrays have the five (strides: four) elements that the rank promises, and the
    // driver writes the whole map when it succeeds.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr(),
            dtype,
            5,
            address as *mut c_void,
            map.sizes.as_ptr(),
            map.strides.as_ptr(),
            map.tile.as_ptr(),
            map.steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()?;
        Ok(encoded.assume_init())
    }
}
