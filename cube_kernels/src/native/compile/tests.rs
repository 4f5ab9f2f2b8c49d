//! The compiler and the folder of what it made; no GPU, but NVRTC.
//!
//! Without NVRTC the tests pass with a line that says so, or fail if `BURN_NATTEN_REQUIRE_NVRTC=1`.

use std::sync::MutexGuard;

use super::*;

/// Whether NVRTC is there.
fn has_nvrtc() -> bool {
    if nvrtc_version().is_some() {
        return true;
    }
    let is_required = std::env::var("BURN_NATTEN_REQUIRE_NVRTC").is_ok_and(|value| value == "1");
    assert!(!is_required, "BURN_NATTEN_REQUIRE_NVRTC is 1, and there is no libnvrtc");
    println!("not run: no libnvrtc where the loader looks");
    false
}

fn source(name: &str, code: &str) -> Source {
    let options = ["--gpu-architecture=sm_90a".to_string()].to_vec();
    Source { name: name.into(), code: code.into(), options }
}

const GOOD: &str = "extern \"C\" __global__ void f(int* x) { *x = 1; }";

/// `BURN_NATTEN_CACHE` for as long as it lives, and the folder that it names. The environment is
/// the process's, so that tests which change it wait for one another.
struct Cache {
    folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Cache {
    fn new(name: &str, value: impl FnOnce(&Path) -> PathBuf) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let folder =
            std::env::temp_dir().join(format!("burn-natten-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        // SAFETY: only the tests here touch the environment of this process, one at a time; Rust
        // itself locks it.
        unsafe { std::env::set_var("BURN_NATTEN_CACHE", value(&folder)) };
        Self { folder, _alone: alone }
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.folder)
            .map(|entries| entries.map(|entry| entry.expect("an entry").path()).collect())
            .unwrap_or_default()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { std::env::remove_var("BURN_NATTEN_CACHE") };
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder of the test's own.
fn own_folder(name: &str) -> Cache {
    Cache::new(name, Path::to_path_buf)
}

#[test]
fn a_program_is_an_elf_file_in_memory_and_on_disk() {
    if !has_nvrtc() {
        return;
    }
    let cache = own_folder("good");
    let source = source("good", GOOD);
    let first = compile(&source, 13000).expect("compiled");
    assert_eq!(first.image[..4], *b"\x7fELF");
    let again = compile(&source, 13000).expect("compiled");
    assert!(Arc::ptr_eq(&first, &again));
    let file = cache.folder.join(format!("{}.cubin", first.key));
    assert_eq!(cache.files(), [file]);
}

#[test]
fn a_second_process_reads_the_file() {
    if !has_nvrtc() {
        return;
    }
    let cache = own_folder("second");
    let source = source("second", GOOD);
    let first = load_or_compile(&source, 13000).expect("compiled");
    let [file] = &cache.files()[..] else { panic!("{:?}", cache.files()) };
    // Another image with a digest that fits: only who reads the file has it.
    write(file, b"from disk").expect("written");
    let second = load_or_compile(&source, 13000).expect("read");
    assert_eq!((second.image.as_slice(), second.key), (&b"from disk"[..], first.key.clone()));
    // Another driver, other options and other code have files of their own.
    let other = load_or_compile(&source, 12080).expect("compiled");
    let options = [source.options.clone(), vec!["--use_fast_math".into()]].concat();
    let fast = load_or_compile(&Source { options, ..source.clone() }, 13000).expect("compiled");
    let code = GOOD.replace('1', "2");
    let two = load_or_compile(&Source { code, ..source }, 13000).expect("compiled");
    let keys = std::collections::HashSet::from([first.key, other.key, fast.key, two.key]);
    assert_eq!((keys.len(), cache.files().len()), (4, 4));
}

#[test]
fn a_damaged_file_is_compiled_anew_and_replaced() {
    if !has_nvrtc() {
        return;
    }
    let cache = own_folder("damaged");
    let source = source("damaged", GOOD);
    let first = load_or_compile(&source, 13000).expect("compiled");
    let [file] = &cache.files()[..] else { panic!("{:?}", cache.files()) };
    let whole = fs::read(file).expect("a file");
    let mut flipped = whole.clone();
    flipped[DIGEST + 100] ^= 1;
    for damaged in [&[], &whole[..10], &whole[..DIGEST], &whole[..whole.len() - 1], &flipped[..]] {
        fs::write(file, damaged).expect("written");
        assert_eq!(read(file), None);
        let again = load_or_compile(&source, 13000).expect("compiled");
        assert_eq!(again.image.len(), first.image.len());
        assert_eq!(again.image[..4], *b"\x7fELF");
        assert_eq!(read(file), Some(again.image));
    }
    assert_eq!(cache.files().len(), 1, "no partial file stays");
}

#[test]
fn what_the_compiler_rejects_comes_with_its_log() {
    if !has_nvrtc() {
        return;
    }
    let cache = own_folder("bad");
    let code = "extern \"C\" __global__ void f() { undeclared_name(); }";
    let error = compile(&source("bad", code), 13000).expect_err("no such function");
    let CompileError::Rejected { name, log } = &error else { panic!("{error}") };
    assert_eq!(name, "bad");
    assert!(log.contains("undeclared_name"), "{log}");
    assert!(error.to_string().contains(log));
    let error = compile(&source("zero", "int a\0b;"), 13000).expect_err("a zero byte");
    assert!(error.to_string().contains("zero byte"), "{error}");
    let options = vec!["--no-such-option".into()];
    let unknown = Source { options, ..source("option", GOOD) };
    assert!(matches!(compile(&unknown, 13000), Err(CompileError::Rejected { .. })));
    assert_eq!(cache.files(), [] as [PathBuf; 0]);
}

#[test]
fn an_empty_variable_keeps_nothing_on_disk() {
    let cache = Cache::new("off", |_| PathBuf::new());
    assert_eq!(cache_folder(), None);
    if has_nvrtc() {
        load_or_compile(&source("off", GOOD), 13000).expect("compiled");
        assert_eq!(cache.files(), [] as [PathBuf; 0]);
    }
}

/// A folder that cannot be made costs the cache, not the program.
#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    if !has_nvrtc() {
        return;
    }
    let cache = Cache::new("blocked", |folder| folder.join("below"));
    fs::write(&cache.folder, b"a file where a folder should be").expect("written");
    load_or_compile(&source("blocked", GOOD), 13000).expect("compiled");
    fs::remove_file(&cache.folder).expect("still a file");
}

#[test]
fn a_digest_begins_every_file() {
    let cache = own_folder("digest");
    let file = cache.folder.join("x.cubin");
    assert_eq!(read(&file), None);
    write(&file, b"image").expect("written");
    assert_eq!(read(&file).as_deref(), Some(&b"image"[..]));
    assert_eq!(cache.files(), [file]);
}
