//! What a token takes on a device that has native kernels for it, seen by what stands in for one: the launches, and which tensors they get.

use std::cell::RefCell;
use std::rc::Rc;

use burn::tensor::{DType, Device, Tensor};
use burn_natten::nsa::PerBranch;
use burn_natten::{NativeSparseCache, Strategy};
use burn_natten_kernels::native::DeviceInfo;
use burn_natten_kernels::native::compile::has_compiler;
use burn_natten_kernels::native::stand_in::{self, Launch, StandIn};
use cubecl::client::Client;
use half::f16;

use super::random::options;

/// Notes of each launch its name and the first number of each tensor that it reads.
#[derive(Default)]
struct Notes(RefCell<Vec<(String, Vec<f32>)>>);

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
        let read = launch.buffers.iter().filter(|buffer| !buffer.is_output).map(first);
        self.0.borrow_mut().push((name, read.collect()));
    }
}

#[test]
fn a_token_is_three_launches() {
    if !has_compiler() {
        println!("not run: there is no NVRTC");
        return;
    }
    let device = Device::cpu();
    let of = |heads: usize, dim: usize, value: f32| {
        Tensor::<4>::full([2, 1, heads, dim], value, (&device, DType::F16))
    };
    let token = || {
        let key = PerBranch {
            compressed: of(2, 16, 3.0),
            selected: of(2, 16, 1.0),
            window: of(2, 16, 5.0),
        };
        let value = PerBranch {
            compressed: of(2, 32, 4.0),
            selected: of(2, 32, 2.0),
            window: of(2, 32, 6.0),
        };
        (of(6, 16, 7.0), key, value, of(6, 3, 8.0))
    };
    let launches = |strategy: Strategy| {
        let notes = Rc::new(Notes::default());
        let mut shapes = vec![];
        stand_in::with(notes.clone(), || {
            let mut cache = NativeSparseCache::new(options().with_strategy(strategy));
            for _ in 0..9 {
                let (query, key, value, gates) = token();
                let output = cache.try_append(query, key, value, gates).expect("a token");
                let branch = output.branches.selected;
                shapes = vec![
                    output.out.dims().to_vec(),
                    branch.out.dims().to_vec(),
                    branch.logsumexp.dims().to_vec(),
                    output.blocks.dims().to_vec(),
                ];
            }
        });
        assert_eq!(shapes, [vec![2, 1, 6, 32], vec![2, 1, 6, 32], vec![2, 1, 6], vec![2, 1, 2, 4]]);
        notes.0.take()
    };
    let all = launches(Strategy::Auto);
    assert_eq!(all.len(), 3 * 9);
    let [compressed, select, tokens] = &all[all.len() - 3..] else { unreachable!() };
    assert_eq!(*compressed, ("decode_compressed".to_string(), vec![7.0, 3.0, 4.0]));
    assert_eq!(select.0, "decode_select");
    assert_eq!(tokens.0, "decode_tokens");
    assert_eq!(tokens.1[..5], [7.0, 1.0, 2.0, 5.0, 6.0]);
    assert_eq!(tokens.1[6], 8.0);
    // Whoever asks for steps by name gets them.
    assert!(launches(Strategy::Reference).is_empty());
}
