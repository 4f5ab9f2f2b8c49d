//! What the compile gates share: their flags, and all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a gate is asked for.
#[derive(Default)]
pub struct Flags {
    /// Those of the gate's own flags that are there.
    pub own: Vec<&'static str>,
    /// `--list`: print names, and compile nothing.
    pub is_listed: bool,
    /// `--keep FOLDER`: where the sources go.
    pub keep: Option<String>,
    /// Parts of names.
    pub parts: Vec<String>,
}

impl Flags {
    /// Those of the command line, of which `known` are the gate's own. An error is a line.
    pub fn read(known: &[&'static str]) -> Result<Self, &'static str> {
        let mut flags = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => flags.is_listed = true,
                "--keep" => flags.keep = Some(arguments.next().ok_or("--keep needs a folder")?),
                _ => match known.iter().find(|flag| **flag == argument) {
                    Some(flag) => flags.own.push(flag),
                    None => flags.parts.push(argument),
                },
            }
        }
        Ok(flags)
    }
}

/// What `of` gives for each, a name and a result, on all cores.
pub fn on_all_cores<T: Sync, R: Send>(
    items: &[T],
    of: impl Fn(usize, &T) -> (String, R) + Sync,
) -> BTreeMap<String, R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let (name, result) = of(index, item);
                    results.lock().expect("no thread panics").insert(name, result);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics")
}
