//! Tables in device memory that a launch reads and that hold addresses of its buffers: of packed batches.
//!
//! Addresses are known on the device's thread alone. There a table is written, in the order of the stream, unless one of the same
//! contents was written for the same addresses before, as those of the last step or of the layer before may have been: then nothing is
//! encoded and nothing copied.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cubecl::client::Client;
use cubecl::server::Handle;

use super::launch::Argument;

/// Tables of the same contents, each for addresses of its own: results of a call are alive while the next one writes to other memory.
const TABLES: usize = 4;

/// Most bytes that all tables take while nothing reads them. Contents that find no room have a table for each launch.
const MOST_BYTES: usize = 64 << 20;

/// Bytes of all tables that stay.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// What tables hold, and where they are. Of one stream of one device: its launches read a table in the order in which it is written.
pub struct Contents {
    arguments: Vec<Argument>,
    bytes: usize,
    /// Whether tables stay for later launches.
    stays: bool,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    all: Vec<Table>,
    /// That which the next launch is offered.
    next: usize,
}

struct Table {
    handle: Handle,
    /// What it has been written for.
    addresses: Option<Vec<u64>>,
    /// Whether a graph writes it.
    is_recorded: bool,
}

impl Contents {
    /// Those of a table: each argument at a multiple of 128 bytes, behind the one before it.
    pub fn new(arguments: Vec<Argument>) -> Self {
        let bytes = arguments.iter().map(Argument::places).sum();
        let room = |held: usize| {
            let held = held + TABLES * bytes;
            (held <= MOST_BYTES).then_some(held)
        };
        let stays = BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        Self { arguments, bytes, stays, tables: Mutex::default() }
    }

    /// What a table holds. They name buffers of its launch, as the kernel's arguments do.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Memory that a launch is to write them to where no table will do, and its number among the tables that stay.
    pub(super) fn memory(&self, client: &Client) -> (Handle, Option<usize>) {
        if !self.stays {
            return (client.empty(self.bytes), None);
        }
        let mut tables = self.tables();
        let number = tables.next;
        tables.next = (number + 1) % TABLES;
        if tables.all.len() == number {
            let handle = client.empty(self.bytes);
            tables.all.push(Table { handle, addresses: None, is_recorded: false });
        }
        (tables.all[number].handle.clone(), Some(number))
    }

    /// A table that holds them for these addresses.
    pub(super) fn written(&self, addresses: &[u64]) -> Option<Handle> {
        let tables = self.tables();
        let is_it = |table: &&Table| table.addresses.as_deref() == Some(addresses);
        tables.all.iter().find(is_it).map(|table| table.handle.clone())
    }

    /// That a table is about to be written, and no longer holds what it did. A graph that is recorded writes it again whenever it is
    /// replayed, so that its contents are never known again.
    pub(super) fn forget(&self, number: usize, is_recorded: bool) {
        let table = &mut self.tables().all[number];
        table.addresses = None;
        table.is_recorded |= is_recorded;
    }

    /// That a table has been written for these addresses.
    pub(super) fn note(&self, number: usize, addresses: Vec<u64>) {
        let table = &mut self.tables().all[number];
        table.addresses = (!table.is_recorded).then_some(addresses);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        if self.stays {
            BYTES.fetch_sub(TABLES * self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    fn contents(words: usize) -> Contents {
        Contents::new(vec![Argument::Struct { words: vec![0; words], pointers: vec![] }])
    }

    #[test]
    fn a_table_is_that_of_the_addresses_it_was_written_for_last() {
        let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
        let contents = contents(32);
        let offered: Vec<_> = (0..2 * TABLES).map(|_| contents.memory(&client).1).collect();
        assert!(offered.into_iter().eq((0..2 * TABLES).map(|number| Some(number % TABLES))));
        contents.note(1, vec![7, 8]);
        contents.note(2, vec![7, 9]);
        assert!(contents.written(&[7, 8]).is_some() && contents.written(&[7, 9]).is_some());
        assert!(contents.written(&[7, 7]).is_none());
        // It is written again, for a launch that may fail.
        contents.forget(1, false);
        assert!(contents.written(&[7, 8]).is_none());
        contents.note(1, vec![5, 5]);
        assert!(contents.written(&[5, 5]).is_some());
        // A graph writes it whenever it is replayed.
        contents.forget(1, true);
        contents.note(1, vec![5, 5]);
        assert!(contents.written(&[5, 5]).is_none() && contents.written(&[7, 9]).is_some());
    }

    #[test]
    fn tables_that_stay_have_an_end() {
        let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
        let words = MOST_BYTES / TABLES / size_of::<u64>();
        let large = contents(words + 128);
        assert_eq!(large.memory(&client).1, None, "it takes more than all may");
        let some: Vec<_> = (0..20).map(|_| contents(words / 10)).collect();
        let stay = some.iter().filter(|contents| contents.memory(&client).1.is_some()).count();
        // Another test has some room, too.
        assert!(matches!(stay, 9 | 10), "{stay}");
        drop(some);
        assert_eq!(contents(words / 10).memory(&client).1, Some(0));
    }
}
