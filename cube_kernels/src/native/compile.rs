//! CUDA C++ to machine code, with NVRTC, at the first use of a kernel.
//!
//! Programs are kept in memory and in a folder on disk: `burn-natten` in the user's cache folder, or
//! the folder that the environment variable `BURN_NATTEN_CACHE` names; an empty value keeps nothing
//! on disk. A file is named by the hash of source, options, NVRTC's version and the driver's.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Instant;

use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};

#[cfg(test)]
mod tests;

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The library is not installed.
    #[error("NVRTC is not installed: no libnvrtc where the loader looks (LD_LIBRARY_PATH)")]
    NoCompiler,
    /// NVRTC rejected the source or the options.
    #[error("NVRTC could not compile {name}: {log}")]
    Rejected {
        /// Which program.
        name: String,
        /// What the compiler said.
        log: String,
    },
}

/// A program in machine code.
#[derive(Debug)]
pub struct Cubin {
    /// Hash of everything that it was made from.
    pub key: Arc<str>,
    /// The ELF file; for what [stands in](super::stand_in) for a device, the source.
    pub image: Vec<u8>,
}

/// A program in source.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name, for messages.
    pub name: String,
    /// CUDA C++ without headers.
    pub code: String,
    /// Options of NVRTC.
    pub options: Vec<String>,
}

type Slot = Arc<OnceLock<Result<Arc<Cubin>, CompileError>>>;

/// Programs by their names.
static KNOWN: LazyLock<Mutex<HashMap<String, Slot>>> = LazyLock::new(Mutex::default);

/// Programs that the process has compiled, or found compiled, since it began.
pub fn programs_loaded() -> usize {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
}

/// Compiles a program, or finds it compiled, by its name. `driver` is the driver's version.
///
/// Takes a second or two the first time, which it logs.
///
/// # Errors
///
/// [`CompileError`] if there is no NVRTC or it rejects the program.
pub fn compile(source: &Source, driver: i32) -> Result<Arc<Cubin>, CompileError> {
    if super::stand_in::current().is_some() {
        let (key, image) = (source.name.as_str().into(), source.code.clone().into_bytes());
        return Ok(Arc::new(Cubin { key, image }));
    }
    let slot = {
        let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match known.get(&source.name) {
            Some(slot) => slot.clone(),
            None => known.entry(source.name.clone()).or_default().clone(),
        }
    };
    // Two threads that need a program wait for one compilation; other programs do not.
    slot.get_or_init(|| load_or_compile(source, driver).map(Arc::new)).clone()
}

/// Programs by what they are specialised by.
pub(super) type Programs<K> = LazyLock<Mutex<HashMap<K, Arc<Cubin>>>>;

/// The program of a specialisation, whose text is written only when it is asked for the first time.
///
/// # Errors
///
/// As [`compile`].
pub(super) fn load<K: Eq + Hash>(
    programs: &Programs<K>,
    key: K,
    driver: i32,
    source: impl FnOnce() -> Source,
) -> Result<Arc<Cubin>, CompileError> {
    let programs = || programs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(cubin) = programs().get(&key) {
        return Ok(cubin.clone());
    }
    let cubin = compile(&source(), driver)?;
    programs().insert(key, cubin.clone());
    Ok(cubin)
}

fn load_or_compile(source: &Source, driver: i32) -> Result<Cubin, CompileError> {
    let version = nvrtc_version().ok_or(CompileError::NoCompiler)?;
    let key = key(source, version, driver);
    let file = cache_folder().map(|folder| folder.join(format!("{key}.cubin")));
    if let Some(image) = file.as_deref().and_then(read) {
        return Ok(Cubin { key: key.into(), image });
    }
    let start = Instant::now();
    let (image, log) = build(source)?;
    log::info!("burn-natten: compiled {} in {:.1} s", source.name, start.elapsed().as_secs_f32());
    log::debug!("{log}");
    if let Some(Err(error)) = file.as_deref().map(|file| write(file, &image)) {
        log::info!("burn-natten: {} is not kept on disk: {error}", source.name);
    }
    Ok(Cubin { key: key.into(), image })
}

fn key(source: &Source, version: (i32, i32), driver: i32) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{version:?} {driver} {:?}\n", source.options));
    hash.update(&source.code);
    hex(&hash.finalize())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where programs are kept, and what is known of them; `None` for nowhere.
pub(super) fn cache_folder() -> Option<PathBuf> {
    match std::env::var_os("BURN_NATTEN_CACHE") {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(folder.into()),
        None => {
            use etcetera::BaseStrategy;
            etcetera::choose_base_strategy().ok().map(|base| base.cache_dir().join("burn-natten"))
        }
    }
}

/// Bytes of the digest that a cached file begins with.
const DIGEST: usize = 32;

/// A cached program; `None` if there is none or the file is not whole.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let image = bytes.split_off(DIGEST.min(bytes.len()));
    (Sha256::digest(&image).as_slice() == bytes).then_some(image)
}

/// Readers see the whole file or none.
fn write(file: &Path, image: &[u8]) -> std::io::Result<()> {
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&partial, [Sha256::digest(image).as_slice(), image].concat())
        .and_then(|()| fs::rename(&partial, file))
        .inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// Whether NVRTC is installed.
pub fn has_compiler() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| nvrtc_version().is_some());
    *FOUND
}

/// Major and minor version of NVRTC; `None` if it is not installed.
pub fn nvrtc_version() -> Option<(i32, i32)> {
    // SAFETY: looks for the library and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: NVRTC writes two integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor).result() }.ok()?;
    Some((major, minor))
}

/// A program that is destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once. A failure here leaks a little memory.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log: Vec<c_char> = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().trim().to_string()
    }
}

/// Compiles, whatever is cached: the image and the compiler's log.
///
/// # Errors
///
/// [`CompileError::Rejected`] with the compiler's log.
pub fn build(source: &Source) -> Result<(Vec<u8>, String), CompileError> {
    let rejected = |log: String| CompileError::Rejected { name: source.name.clone(), log };
    let failed = |error: result::NvrtcError| rejected(format!("{error:?}"));
    let code = CString::new(source.code.as_str())
        .map_err(|_| rejected("the source holds a zero byte".into()))?;
    let program = Program(result::create_program(&code, None).map_err(failed)?);
    // SAFETY: the program is alive; NVRTC writes the bytes whose number it gives.
    unsafe {
        if result::compile_program(program.0, &source.options).is_err() {
            return Err(rejected(program.log()));
        }
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(failed)?;
        let mut image = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()).result().map_err(failed)?;
        Ok((image, program.log()))
    }
}
