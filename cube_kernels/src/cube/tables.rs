//! Tables of numbers that launches read again and again, in the memory of their devices.

use std::sync::{Mutex, MutexGuard};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Most tables that stay on devices: a step of training has one for each pass over a set of sequences, and all layers share
/// them. Lengths that never come back push each other out.
const MOST: usize = 64;

/// A table, and where it is.
struct Table {
    words: Vec<u32>,
    handle: Handle,
}

/// Those that were used last, the last one at the end.
static KNOWN: Mutex<Vec<Table>> = Mutex::new(vec![]);

fn known() -> MutexGuard<'static, Vec<Table>> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Memory of the client's device that holds these words, to be read alone.
///
/// Tables are told apart by what they hold: to make one takes less time than to tell whether it is known by anything else,
/// and two that differ mostly do so within the first words.
pub(crate) fn table(client: &Client, words: Vec<u32>) -> Handle {
    let mut known = known();
    let service = client.service_id();
    let place =
        known.iter().rposition(|table| table.handle.service == service && table.words == words);
    let table = match place {
        Some(place) => known.remove(place),
        None => {
            if known.len() == MOST {
                known.remove(0);
            }
            let handle = client.create_from_slice(u32::as_bytes(&words));
            Table { words, handle }
        }
    };
    let handle = table.handle.clone();
    known.push(table);
    handle
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    /// Numbers of the memories that hold tables of one word from `first` on, each a table of no other test.
    fn tables(client: &Client, words: std::ops::Range<u32>) -> Vec<Handle> {
        words.map(|word| table(client, vec![0xdead_beef, word])).collect()
    }

    #[test]
    fn what_was_used_last_stays_and_no_more_than_some() {
        let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
        let of = |word: u32| tables(&client, word..word + 1).remove(0);
        let first = of(0);
        assert_eq!(client.read_one_unchecked(first.clone())[4..8], [0; 4]);
        assert_eq!(of(0).memory, first.memory);
        for word in 1..2 * MOST as u32 {
            of(word);
            of(0);
        }
        assert_eq!(of(0).memory, first.memory, "it was in use all the time");
        let second = of(1);
        assert_eq!(client.read_one_unchecked(second)[4..8], [1, 0, 0, 0]);
        assert!(known().len() <= MOST);
    }
}
