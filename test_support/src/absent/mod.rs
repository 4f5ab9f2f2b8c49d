//! A device that is not there: what would be launched on it is kept, and can be compiled.
//!
//! Launches go the way of any other, through the same checks and the same choice of kernels, by the properties that the
//! device is said to have. It has no memory, so that nothing can be read.

pub mod everything;
pub mod hip;
#[cfg(feature = "metal")]
pub mod metal;
#[cfg(feature = "vulkan")]
pub mod vulkan;

use std::mem::take;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use cubecl::client::Client;
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, TargetProperties, UIntKind, VectorSize,
    features::{Features, MmaConfig, Plane, TypeUsage},
};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_common::profile::{ProfileDuration, TimingMethod};
use cubecl_core::{CubeCount, CubeKernel};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_server::allocator::ContiguousMemoryLayoutPolicy;
use cubecl_server::dry_run::LaunchMode;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, IoError, KernelArguments, ProfileError, ProfilingToken, Server,
    ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_server::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};

/// What a kernel would have been launched with.
pub struct Launch {
    pub kernel: Box<dyn CubeKernel>,
    /// Buffers that are bound.
    pub buffers: usize,
    /// Bytes of scalars and sizes.
    pub info: usize,
    pub count: CubeCount,
}

type Launches = Arc<Mutex<Vec<Launch>>>;

/// A device that is not there.
pub struct Absent {
    pub client: Client,
    launches: Launches,
}

/// What kernels may ask of it.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    pub name: &'static str,
    /// Units of a plane.
    pub plane: u32,
    /// Bytes of shared memory of a cube.
    pub shared_memory: usize,
    /// Units of a cube.
    pub units: u32,
    /// Cubes along an axis.
    pub cubes: u32,
    /// Buffers of a kernel.
    pub bindings: u32,
    /// Elements of a vector.
    pub vector: VectorSize,
    /// Cooperative matrices of f16 and bf16, of so many rows, columns and terms.
    pub matrices: Option<[u32; 3]>,
}

impl Absent {
    pub fn new(hardware: &Hardware) -> Self {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let id = DeviceId::new(0, COUNT.fetch_add(1, Ordering::Relaxed));
        let launches = Launches::default();
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Nowhere>(id),
            hardware.name,
            properties(hardware),
            TargetProperties { mma: Default::default() },
            Arc::new(ServerLogger::default()),
            ContiguousMemoryLayoutPolicy::new(ALIGNMENT),
        );
        let server = Nowhere { utilities: Arc::new(utilities), launches: launches.clone() };
        Self { client: Client::init(id, server), launches }
    }

    /// What was launched since the last call.
    pub fn launches(&self) -> Vec<Launch> {
        cubecl::future::block_on(self.client.sync()).expect("nothing is computed");
        take(&mut self.launches.lock().expect("no thread panics"))
    }
}

const ALIGNMENT: usize = 256;

fn properties(of: &Hardware) -> DeviceProperties {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: of.plane,
        plane_size_max: of.plane,
        max_bindings: of.bindings,
        max_shared_memory_size: of.shared_memory,
        max_cube_count: (of.cubes, of.cubes, of.cubes),
        max_units_per_cube: of.units,
        max_cube_dim: (of.units, of.units, of.units.min(64)),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: of.vector,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut properties = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, ALIGNMENT as u64),
        hardware,
        TimingMethod::System,
        DeviceIdentity { name: of.name.into(), fingerprint: of.name.into(), physical: None },
    );
    properties.register_address_type(AddressType::U32);
    properties.register_address_type(AddressType::U64);
    for kind in [FloatKind::F32, FloatKind::F16, FloatKind::BF16] {
        properties.register_type_usage(ElemType::Float(kind), TypeUsage::all());
    }
    for elem in [
        ElemType::Index,
        ElemType::Bool,
        ElemType::UInt(UIntKind::U32),
        ElemType::UInt(UIntKind::U64),
        ElemType::Int(IntKind::I32),
        ElemType::Int(IntKind::I64),
    ] {
        properties.register_type_usage(elem, TypeUsage::all());
    }
    let (f16, bf16) = (ElemType::Float(FloatKind::F16), ElemType::Float(FloatKind::BF16));
    if let Some([m, n, k]) = of.matrices {
        properties.features.matmul.cmma.extend([f16, bf16].map(|factor| MmaConfig {
            a_type: factor,
            b_type: factor,
            cd_type: ElemType::Float(FloatKind::F32),
            m,
            n,
            k,
        }));
    }
    properties.features.plane.insert(Plane::Ops);
    properties.features.memory_reinterpret = true;
    properties.features.alignment = true;
    properties
}

/// The server of such a device.
struct Nowhere {
    utilities: Arc<ServerUtilities>,
    launches: Launches,
}

impl std::fmt::Debug for Nowhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nowhere")
    }
}

fn absent() -> ServerError {
    let reason = "the device is not there".to_string();
    ServerError::Generic { reason, backtrace: BackTrace::capture() }
}

impl DeviceService for Nowhere {
    fn init(_: DeviceId) -> Self {
        unreachable!("it is registered with its hardware")
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone() as ServerUtilitiesHandle
    }
}

impl ServerCommunication for Nowhere {}

impl Server for Nowhere {
    fn initialize_memory(
        &mut self,
        _: ManagedMemoryHandle,
        _: u64,
        _: StreamId,
    ) -> Result<(), ServerError> {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        _: Vec<CopyDescriptor>,
        _: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        Box::pin(async { Err(absent()) })
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {}

    fn sync(&mut self, _: Vec<BufferBinding>, _: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Ok(()) })
    }

    fn check(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        bindings: KernelArguments,
        _: StreamId,
        _: LaunchMode,
    ) {
        let (buffers, info) = (bindings.resources.len(), bindings.info.data.len());
        let launch = Launch { kernel, buffers, info, count };
        self.launches.lock().expect("no thread panics").push(launch);
    }

    fn flush(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _: StreamId) -> Result<ProfilingToken, ServerError> {
        Err(absent())
    }

    fn end_profile(
        &mut self,
        _: StreamId,
        _: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        Err(ProfileError::Unknown {
            reason: "the device is not there".into(),
            backtrace: BackTrace::capture(),
        })
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

/// Memory that there is none of.
struct NoMemory;

impl ComputeStorage for NoMemory {
    type Resource = ();

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn get(&mut self, _: &StorageHandle) -> Result<(), IoError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() })
    }

    fn alloc(&mut self, _: u64) -> Result<StorageHandle, IoError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() })
    }

    fn dealloc(&mut self, _: StorageId) {}

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        0
    }
}

impl ServerStorage for Nowhere {
    type Storage = NoMemory;

    fn get_resource(
        &mut self,
        _: BufferBinding,
        _: StreamId,
    ) -> Result<ManagedResource<()>, ServerError> {
        Err(absent())
    }
}
