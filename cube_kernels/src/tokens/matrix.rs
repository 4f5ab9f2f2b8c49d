use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::server::Handle;

use super::RowTile;
use super::columns::{RowRangeLaunch, sum};
use crate::KernelError;
use crate::cube::{F32, addresses_with_room, check_type, widest_of};
use crate::view::check_buffer;

/// A contiguous tensor `[rows, channels]` on a device.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    /// Of the device.
    pub client: &'a Client,
    /// Tokens.
    pub rows: usize,
    /// Elements of each.
    pub channels: usize,
    /// f16, bf16 or f32.
    pub dtype: ElemType,
    /// Units of a cube; with one, each row is one unit's.
    pub units: usize,
}

/// How a kernel is launched over a [`Matrix`].
pub(super) struct Launch {
    pub vector: usize,
    pub address_type: AddressType,
}

/// Most cubes among which rows are shared out: four for each multiprocessor of a large GPU. Their sums are added up by few.
const MAX_CUBES: usize = 512;

/// How rows are shared out among cubes: each takes as many turns.
pub(super) struct Shares {
    pub cubes: usize,
    turns: usize,
}

impl Shares {
    /// `count` turns in all, for each of so many groups of columns.
    pub fn new(count: usize, groups: usize) -> Self {
        let turns = count.div_ceil((MAX_CUBES / groups).max(1)).max(1);
        Self { cubes: count.div_ceil(turns).max(1), turns }
    }

    /// Launch argument for so many rows.
    pub fn argument(&self, rows: usize) -> RowRangeLaunch {
        RowRangeLaunch::new(rows, self.turns)
    }
}

impl<'a> Matrix<'a> {
    /// With as many units as suit the device: one on a CPU, where each is a thread.
    pub fn new(client: &'a Client, [rows, channels]: [usize; 2], dtype: ElemType) -> Self {
        let hardware = &client.properties().hardware;
        let units = match hardware.num_cpu_cores {
            Some(_) => 1,
            None => hardware.max_units_per_cube as usize,
        };
        Self { client, rows, channels, dtype, units }
    }

    /// Fails if the device lacks the type or the addresses.
    pub(super) fn launch(&self) -> Result<Launch, KernelError> {
        check_type(self.client, self.dtype)?;
        let address_type = addresses_with_room(self.client, self.rows * self.channels)?;
        Ok(Launch { vector: self.vector(), address_type })
    }

    /// Elements that are loaded at once: as many as the device can, of those that rows consist of.
    pub(super) fn vector(&self) -> usize {
        widest_of(self.client, self.channels, self.dtype)
    }

    /// Fails if rows are too long.
    pub(super) fn tile(&self) -> Result<RowTile, KernelError> {
        let vector = self.vector();
        RowTile::new(self.channels / vector, vector, self.units).ok_or_else(|| {
            let channels = self.channels;
            KernelError::Problem(format!("rows of {channels} channels are too long for its units"))
        })
    }

    pub(super) fn check(&self, name: &'static str, handle: &Handle) -> Result<(), KernelError> {
        check_buffer(name, handle, self.rows * self.channels * self.dtype.size())
    }

    pub(super) fn check_row(&self, name: &'static str, handle: &Handle) -> Result<(), KernelError> {
        check_buffer(name, handle, self.channels * self.dtype.size())
    }

    /// Memory for the sums of each cube.
    pub(super) fn partial_sums(&self, shares: &Shares) -> Handle {
        self.client.empty((shares.cubes * self.channels * size_of::<f32>()).max(1))
    }

    /// Adds up what cubes have summed, in order.
    pub(super) fn sum_partial(
        &self,
        partial: &Handle,
        shares: &Shares,
        to: &Handle,
    ) -> Result<(), KernelError> {
        let sums = Matrix { rows: shares.cubes, dtype: F32, ..*self };
        sum(&sums, partial, 1, to, self.dtype)
    }
}
