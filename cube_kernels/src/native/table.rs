//! Tables in device memory that a launch reads and that hold addresses of its buffers: of packed batches.
//!
//! Addresses are known on the device's thread alone. There a table is written, in the order of the stream, unless one of the same
//! contents was written for the same addresses before, as those of the last step or of the layer before may have been: then nothing is
//! encoded and nothing copied. Each launch brings memory of its own for that: what it finds is never written again.

use std::collections::VecDeque;
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
    /// The oldest first.
    tables: Mutex<VecDeque<Table>>,
}

struct Table {
    handle: Handle,
    /// What it has been written for.
    addresses: Vec<u64>,
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

    /// Memory that a launch is to write them to where no table will do.
    pub(super) fn memory(&self, client: &Client) -> Handle {
        client.empty(self.bytes)
    }

    /// A table that holds them for these addresses.
    pub(super) fn written(&self, addresses: &[u64]) -> Option<Handle> {
        let tables = self.tables();
        let found = tables.iter().find(|table| table.addresses == addresses);
        found.map(|table| table.handle.clone())
    }

    /// Has memory that they have been written to for these addresses stay, in place of the oldest. A launch that reads that one has been
    /// enqueued, so that the stream's order keeps it from what is written there next.
    pub(super) fn keep(&self, handle: Handle, addresses: Vec<u64>) {
        if !self.stays {
            return;
        }
        let mut tables = self.tables();
        if tables.len() == TABLES {
            tables.pop_front();
        }
        tables.push_back(Table { handle, addresses });
    }

    /// Never held while the client is called: that waits for the device's thread, which wants it, too.
    fn tables(&self) -> MutexGuard<'_, VecDeque<Table>> {
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

    fn client() -> Client {
        cubecl::Device::cpu().expect("the feature `cpu` is on").client()
    }

    #[test]
    fn the_last_tables_stay_for_their_addresses() {
        let (client, contents) = (client(), contents(32));
        let last = TABLES as u64;
        for number in 0..=last {
            assert!(contents.written(&[7, number]).is_none());
            contents.keep(contents.memory(&client), vec![7, number]);
        }
        let found: Vec<_> =
            (0..=last + 1).map(|number| contents.written(&[7, number]).is_some()).collect();
        assert_eq!(found, [false, true, true, true, true, false]);
    }

    #[test]
    fn tables_that_stay_have_an_end() {
        let client = client();
        let words = MOST_BYTES / TABLES / size_of::<u64>();
        let stays = |contents: &Contents| {
            contents.keep(contents.memory(&client), vec![1]);
            contents.written(&[1]).is_some()
        };
        assert!(!stays(&contents(words + 128)), "they take more than all may");
        let some: Vec<_> = (0..20).map(|_| contents(words / 10)).collect();
        let stay = some.iter().filter(|contents| stays(contents)).count();
        // Another test has some room, too.
        assert!(matches!(stay, 9 | 10), "{stay}");
        drop(some);
        assert!(stays(&contents(words / 10)));
    }
}
