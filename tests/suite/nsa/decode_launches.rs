//! What a token takes on a device that has native kernels for it, seen by what stands in for one: the launches, and which tensors they get.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use burn::tensor::{DType, Device, Tensor};
use burn_natten::nsa::{BranchTokens, PerBranch};
use burn_natten::{NativeSparseCache, NativeSparseOutput, Strategy};
use burn_natten_kernels::native::DeviceInfo;
use burn_natten_kernels::native::compile::has_compiler;
use burn_natten_kernels::native::stand_in::{self, Launch, StandIn};
use cubecl::client::Client;
use half::f16;

use super::random::options;

/// Of each launch its name, and for the address in each word of its arguments the first number of that memory and the bytes behind it.
type Noted = (String, BTreeMap<(usize, usize), (f32, usize)>);

#[derive(Default)]
struct Notes {
    launches: RefCell<Vec<Noted>>,
    /// The memory that kernels write a part of.
    updated: RefCell<Vec<Vec<String>>>,
}

impl StandIn for Notes {
    fn info(&self) -> DeviceInfo {
        // Of no GPU that tests run on: programs are kept by their process.
        DeviceInfo { capability: 87, multiprocessors: 2, l2_bytes: 4 << 20, driver: 13000 }
    }

    fn launch(&self, client: &Client, launch: Launch) {
        let name = launch.kernel.entry.to_str().expect("a name").to_string();
        let first = |buffer: &stand_in::Buffer| {
            let bytes = client.read_one(buffer.handle.clone()).expect("memory");
            f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
        };
        let mut noted = BTreeMap::new();
        for (number, argument) in launch.arguments.iter().enumerate() {
            let stand_in::Argument::Struct { pointers, .. } = argument else { continue };
            for (word, buffer, bytes) in pointers {
                noted.insert((number, *word), (first(&launch.buffers[*buffer]), *bytes));
            }
        }
        self.launches.borrow_mut().push((name, noted));
        let updated = launch.buffers.iter().filter(|buffer| buffer.is_kept);
        let id = |buffer: &stand_in::Buffer| {
            format!("{:?}", buffer.handle.clone().binding().memory.id())
        };
        self.updated.borrow_mut().push(updated.map(id).collect());
    }
}

const KEYS: [f32; 3] = [3.0, 1.0, 5.0];
const VALUES: [f32; 3] = [4.0, 2.0, 6.0];

/// The same number everywhere in the keys, or the values, of each branch, or one for all.
fn tokens(device: &Device, rows: usize, dim: usize, own: bool, of: [f32; 3]) -> BranchTokens {
    let full = |value| Tensor::<4>::full([2, rows, 2, dim], value, (device, DType::F16));
    let [compressed, selected, window] = of.map(full);
    match own {
        true => PerBranch { compressed, selected, window }.into(),
        false => selected.into(),
    }
}

fn append(cache: &mut NativeSparseCache, own: bool, rows: usize, times: f32) -> NativeSparseOutput {
    let device = Device::cpu();
    let full = |dim, value: f32| Tensor::<4>::full([2, rows, 6, dim], value, (&device, DType::F16));
    let key = tokens(&device, rows, 16, own, KEYS.map(|x| times * x));
    let value = tokens(&device, rows, 32, own, VALUES.map(|x| times * x));
    cache.try_append(full(16, 7.0), key, value, full(3, 8.0)).expect("tokens")
}

/// The launches of so many tokens one by one, behind a prompt of eight.
fn launches(own: bool, count: usize, strategy: Strategy) -> Vec<Noted> {
    let mut cache = NativeSparseCache::new(options().with_strategy(strategy));
    append(&mut cache, own, 8, 1.0);
    let notes = Rc::new(Notes::default());
    stand_in::with(notes.clone(), || {
        for _ in 0..count {
            let output = append(&mut cache, own, 1, 16.0);
            assert_eq!(output.out.dims(), [2, 1, 6, 32]);
            assert_eq!(output.branches.selected.out.dims(), [2, 1, 6, 32]);
            assert_eq!(output.branches.selected.logsumexp.dims(), [2, 1, 6]);
            assert_eq!(output.blocks.dims(), [2, 1, 2, 4]);
        }
    });
    assert_eq!(cache.tokens(), 8 + count);
    notes.launches.take()
}

#[test]
fn a_token_is_three_launches() {
    if !has_compiler() {
        println!("not run: there is no NVRTC");
        return;
    }
    // Bytes of a token's keys, and of its values; places in a window of `recent`, and among what is not compressed yet.
    let (key, value, recent, rest) = (2 * 2 * 16, 2 * 2 * 32, 8, 4);
    for own in [false, true] {
        let all = launches(own, 1, Strategy::Auto);
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["decode_compressed", "decode_select", "decode_tokens"]);
        let [(_, compressed), _, (_, attended)] = &all[..] else { unreachable!() };
        // Queries, compressed keys and values.
        let of = |word| compressed[&(0, word)];
        let blocks = if own { [KEYS[0], VALUES[0]] } else { [KEYS[1], VALUES[1]] };
        assert_eq!([of(1), of(2), of(3)], [(7.0, 0), (blocks[0], 0), (blocks[1], 0)]);
        // From where the new token's keys and values are taken, and where they go to: for the list, the window, and what is not compressed yet.
        let appended: Vec<_> =
            compressed.iter().filter(|((number, _), _)| *number == 1).map(|(_, at)| *at).collect();
        let [k, v] =
            [KEYS, VALUES].map(|[compressed, selected, window]| [selected, window, compressed]);
        let expected = match own {
            false => vec![(16.0 * k[0], 0), (16.0 * v[0], 0), (k[0], 8 * key), (v[0], 8 * value)],
            true => {
                let from = k.into_iter().chain(v).map(|x| (16.0 * x, 0));
                let places = [8, recent, rest];
                let to = k.into_iter().zip(places.map(|at| at * key));
                from.chain(to).chain(v.into_iter().zip(places.map(|at| at * value))).collect()
            }
        };
        assert_eq!(appended, expected, "own {own}");
        // Keys and values of lists and of windows, which the token is among; gates.
        let of = |word: usize| attended[&(0, word)].0;
        let [selected, window] = if own { [0, 1] } else { [0, 0] };
        assert_eq!([6, 7, 8, 9, 10].map(of), [7.0, k[selected], v[selected], k[window], v[window]]);
        assert_eq!(of(12), 8.0);
    }
    // The fourth token completes a block: of the last eight tokens, behind the one that is there.
    let all = launches(false, 4, Strategy::Auto);
    assert_eq!(all.len(), 4 * 3);
    for (number, (_, compressed)) in all.iter().step_by(3).enumerate() {
        let block = [12, 13, 14, 15].map(|word| compressed.get(&(1, word)).copied());
        let expected =
            [(KEYS[1], 4 * key), (VALUES[1], 4 * value), (KEYS[1], key), (VALUES[1], value)];
        assert_eq!(block, if number == 3 { expected.map(Some) } else { [None; 4] });
    }
    // Whoever asks for steps by name gets them.
    assert!(launches(true, 1, Strategy::Reference).is_empty());
}

/// Memory that someone else holds is copied, and stays theirs.
#[test]
fn tokens_are_written_in_place() {
    if !has_compiler() {
        println!("not run: there is no NVRTC");
        return;
    }
    for own in [false, true] {
        let notes = Rc::new(Notes::default());
        stand_in::with(notes.clone(), || {
            let mut cache = NativeSparseCache::new(options());
            append(&mut cache, own, 8, 1.0);
            for _ in 0..7 {
                append(&mut cache, own, 1, 2.0);
            }
            let held = cache.clone();
            append(&mut cache, own, 1, 2.0);
            drop(held);
        });
        // Tokens 9 to 16, of which the twelfth and the last one complete a block.
        let updated = notes.updated.take();
        let of_token = |token: usize| &updated[3 * (token - 9)];
        assert_eq!(of_token(12).len(), of_token(11).len() + 2);
        // All keys and all values; what is kept of the others moves on within memory that is as short as they are.
        let of_all = |token| {
            let memory = of_token(token);
            [&memory[0], &memory[memory.len() / 2]]
        };
        for token in [9, 10, 11, 13, 14] {
            assert_eq!(of_all(token), of_all(15), "own {own}, token {token}");
        }
        let [twelfth, last] = [12, 16].map(of_token);
        assert_eq!(last.len(), twelfth.len());
        assert!(last.iter().all(|memory| !twelfth.contains(memory)), "own {own}");
    }
}
