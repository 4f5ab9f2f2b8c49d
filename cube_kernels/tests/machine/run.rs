//! The machine in a device's place.

use std::cell::{Cell, RefCell};
use std::fs;
use std::process::Command;
use std::rc::Rc;

use burn_natten_kernels::native::stand_in::{
    self, Argument, Buffer, DeviceInfo, Launch, MapElement, StandIn, TensorMap,
};
use cubecl::client::Client;
use cubecl_common::bytes::Bytes;
use test_support::cpp::Folder;

use crate::program::build;

/// When what is asynchronous is done, see `cpp/machine.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Early,
    Late,
    Random(u32),
}

impl Policy {
    pub const ALL: [Self; 3] = [Self::Late, Self::Early, Self::Random(1)];

    fn words(self) -> [u64; 2] {
        match self {
            Self::Early => [0, 0],
            Self::Late => [1, 0],
            Self::Random(seed) => [2, u64::from(seed)],
        }
    }
}

/// A change of a kernel's text: every `from` becomes `to`.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub from: &'static str,
    pub to: &'static str,
}

/// A machine and what it is asked to do.
#[derive(Clone, Copy)]
pub struct Machine {
    pub compiler: &'static str,
    pub capability: u32,
    pub policy: Policy,
    pub change: Option<Change>,
}

struct Running {
    machine: Machine,
    fault: RefCell<Option<String>>,
    is_changed: Cell<bool>,
    /// What the launch before wrote.
    written: RefCell<Vec<Buffer>>,
    watch: Box<Watch>,
}

/// What is shown each launch ahead of it.
type Watch = dyn Fn(&Client, &Launch);

impl Machine {
    /// Runs `work` with all of its launches on the machine. An error is the first fault.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> Result<R, String> {
        self.watched(|_, _| (), work)
    }

    /// The same while `watch` looks on.
    pub fn watched<R>(
        &self,
        watch: impl Fn(&Client, &Launch) + 'static,
        work: impl FnOnce() -> R,
    ) -> Result<R, String> {
        let running = Rc::new(Running {
            machine: *self,
            fault: RefCell::default(),
            is_changed: Cell::new(self.change.is_none()),
            written: RefCell::default(),
            watch: Box::new(watch),
        });
        let result = stand_in::with(running.clone(), work);
        assert!(running.is_changed.get(), "no kernel has {:?}", self.change);
        match running.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(result),
        }
    }
}

impl StandIn for Running {
    fn info(&self) -> DeviceInfo {
        // So few that CTAs have several tiles each.
        DeviceInfo {
            capability: self.machine.capability,
            multiprocessors: 2,
            l2_bytes: 50 << 20,
            driver: 13000,
        }
    }

    fn launch(&self, client: &Client, launch: Launch) {
        (self.watch)(client, &launch);
        if self.fault.borrow().is_none() {
            let mut code = String::from_utf8(launch.kernel.cubin.image.clone()).expect("a source");
            if let Some(Change { from, to }) =
                self.machine.change.filter(|of| code.contains(of.from))
            {
                code = code.replace(from, to);
                self.is_changed.set(true);
            }
            let ahead = if launch.is_early { self.written.take() } else { vec![] };
            *self.fault.borrow_mut() = run(&self.machine, client, &launch, &ahead, &code).err();
            let outputs = launch.buffers.into_iter().filter(|buffer| buffer.is_output);
            self.written.replace(outputs.collect());
        }
    }
}

/// Whether nobody else has written what this kernel writes to one of its buffers, and it is not the caller's.
fn is_new(entry: &str, buffer: usize) -> bool {
    // The statistics, where such a kernel makes them itself, and slopes, where it leaves some.
    let (statistics, slopes) = (6, 12);
    ["attention_delta", "decode_compressed"].contains(&entry)
        || entry == "attention_backward" && [statistics, slopes].contains(&buffer)
}

/// Runs one launch of a program. Buffers `ahead` are those that a launch wrote that may not have ended yet.
fn run(
    machine: &Machine,
    client: &Client,
    launch: &Launch,
    ahead: &[Buffer],
    code: &str,
) -> Result<(), String> {
    let entry = launch.kernel.entry.to_str().expect("a name");
    let program = build(machine.compiler, code, entry)
        .unwrap_or_else(|log| panic!("{entry} does not compile: {log}"));
    let folder = Folder::temporary();
    let path = |name: &str| folder.0.join(name);
    let words: Vec<u8> =
        describe(machine, launch, ahead).into_iter().flat_map(u64::to_le_bytes).collect();
    fs::write(path("launch"), words).expect("written");
    let mut before = vec![];
    for (index, buffer) in launch.buffers.iter().enumerate() {
        let mut bytes = client.read_one(buffer.handle.clone()).expect("memory").to_vec();
        let is_poisoned = is_new(entry, index) && !buffer.is_kept;
        if buffer.is_output && is_poisoned {
            bytes.fill(0xff);
        }
        if buffer.is_cleared {
            bytes.fill(0);
        }
        fs::write(path(&index.to_string()), &bytes).expect("written");
        before.push(bytes);
    }
    let output = Command::new(program).arg(&folder.0).output().expect("the kernel was built");
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{log} ({}, {:?})", output.status, machine.policy));
    }
    for (index, (buffer, before)) in launch.buffers.iter().zip(before).enumerate() {
        let after = fs::read(path(&index.to_string())).expect("the kernel wrote it");
        // A buffer may be there twice.
        let is_new = is_new(entry, index) || buffer.is_cleared;
        if buffer.is_output && (after != before || is_new) {
            client.write(&buffer.handle, Bytes::from_bytes_vec(after));
        }
    }
    Ok(())
}

/// The file `launch` of `cpp/machine.cpp`.
fn describe(machine: &Machine, launch: &Launch, ahead: &[Buffer]) -> Vec<u64> {
    let Launch { kernel, buffers, arguments, .. } = launch;
    let mut words: Vec<u64> =
        [kernel.grid, kernel.block, kernel.shared_memory].into_iter().map(u64::from).collect();
    words.extend(machine.policy.words());
    words.extend([buffers.len() as u64, arguments.len() as u64]);
    let ahead: Vec<_> = ahead.iter().map(Buffer::place).collect();
    for buffer in buffers {
        words.extend([buffer.is_output, ahead.contains(&buffer.place())].map(u64::from));
    }
    for buffer in buffers {
        words.push(buffer.contents().len() as u64);
        buffer.contents().iter().for_each(|content| describe_argument(content, &mut words));
    }
    arguments.iter().for_each(|argument| describe_argument(argument, &mut words));
    words
}

fn describe_argument(argument: &Argument, words: &mut Vec<u64>) {
    match argument {
        Argument::Struct { words: value, pointers } => {
            words.extend([0, value.len() as u64]);
            words.extend(value);
            words.push(pointers.len() as u64);
            for (word, buffer, byte) in pointers {
                words.extend([*word as u64, *buffer as u64, *byte as u64]);
            }
        }
        Argument::TensorMap(map) => {
            let TensorMap { buffer, offset, element, sizes, strides, tile, steps } = map;
            let bytes = match element {
                MapElement::F16 | MapElement::Bf16 => 2,
                MapElement::F32 => 4,
            };
            words.extend([1, *buffer as u64, *offset as u64, bytes, map.swizzle().into()]);
            words.extend(sizes.iter().chain(strides));
            words.extend(tile.iter().chain(steps).copied().map(u64::from));
        }
    }
}
