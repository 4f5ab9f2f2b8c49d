//! What kernels take of a device, without one.

use burn_natten_kernels::{Axis, KernelError, Problem};
use cubecl::prelude::CubeCount;
use test_support::absent::everything::{Named, everything, launch_rows};
use test_support::absent::{Absent, Hardware};
use test_support::format::{F16, F32};

/// What WebGPU promises, but for buffers, of which browsers have 10: CubeCL takes one for sizes.
pub const WEBGPU: Hardware = Hardware {
    name: "webgpu",
    plane: 32,
    shared_memory: 16 << 10,
    units: 256,
    cubes: 65_535,
    bindings: 9,
    vector: 4,
    matrices: None,
};

#[test]
fn kernels_take_no_more_than_webgpu_has() {
    let device = Absent::new(&WEBGPU);
    for format in [F32, F16] {
        for Named { name, launch } in everything(&device, format, &[]) {
            let name = format!("{name}: {}", launch.kernel.name());
            let units = launch.kernel.id().cube_dim.num_elems();
            assert!(units <= WEBGPU.units, "{name} has cubes of {units} units");
            assert!(launch.buffers <= WEBGPU.bindings as usize, "{name} binds {}", launch.buffers);
            let CubeCount::Static(x, y, z) = launch.count else {
                panic!("{name} leaves its grid to the device")
            };
            assert!([x, y, z].iter().all(|cubes| *cubes <= WEBGPU.cubes), "{name} {x} {y} {z}");
        }
    }
}

#[test]
fn a_device_without_room_for_the_buffers_is_refused() {
    let problem = Problem::new([Axis::neighborhood(40, 7)], 2, 16);
    for (bindings, expected) in
        [(9, Ok(())), (8, Err(KernelError::Device("room for 9 buffers in a kernel")))]
    {
        let device = Absent::new(&Hardware { bindings, ..WEBGPU });
        assert_eq!(launch_rows(&device.client, &problem, F32), expected, "{bindings} buffers");
        assert_eq!(device.launches().is_empty(), expected.is_err(), "{bindings} buffers");
    }
}
