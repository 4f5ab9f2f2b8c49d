//! Choices that were made before: one among hundreds of schedules is not made at every call.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{LazyLock, Mutex};

use crate::{Axis, MAX_RANK, Problem};

/// What a choice depends on: a problem without its scale, and how it can be computed.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Key<How> {
    how: How,
    axes: [Axis; MAX_RANK],
    sizes: [usize; 6],
}

/// What was chosen for each.
pub(crate) type Choices<How, T> = LazyLock<Mutex<HashMap<Key<How>, T>>>;

/// What `choose` gives for a problem, or gave. That there is nothing to choose is not remembered.
pub(crate) fn remembered<How: Eq + Hash, T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = *problem;
    let sizes = [batch, heads, heads_kv, head_dim, head_dim_v, additional];
    let key = Key { how, axes, sizes };
    let known = || choices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(choice) = known().get(&key) {
        return Some(choice.clone());
    }
    // Not under the lock: a choice by measurement takes seconds.
    let choice = choose()?;
    known().insert(key, choice.clone());
    Some(choice)
}
