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
        // Written by the graph that is recorded, and not before it is replayed.
        None if client.is_capturing() => return client.create_from_slice(u32::as_bytes(&words)),
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

    #[test]
    fn what_was_used_last_stays_and_no_more_than_some() {
        let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
        // Tables of no other test.
        let words = |word: u32| vec![0xdead_beef, word];
        let is_known = |word: u32| known().iter().any(|table| table.words == words(word));
        let of = |word: u32| client.read_one_unchecked(table(&client, words(word)));
        assert!(!is_known(0));
        assert_eq!(of(0)[4..8], [0; 4]);
        for word in 1..2 * MOST as u32 {
            of(word);
            assert!(is_known(0), "it was in use all the time");
            of(0);
        }
        assert!(!is_known(1) && known().len() <= MOST);
        assert_eq!(of(1)[4..8], [1, 0, 0, 0]);
    }
}
