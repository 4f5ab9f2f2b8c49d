//! Choices that were made before: one among hundreds of schedules is not made at every call.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{LazyLock, Mutex};

use crate::{Axis, MAX_RANK, Problem};

/// Most choices that are kept of each kind. A model has a few dozen problems; lengths that never come back, as those of
/// texts, push each other out.
const MOST: usize = 1024;

/// What a choice depends on: a problem without its scale, and how it can be computed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key<How> {
    how: How,
    axes: [Axis; MAX_RANK],
    sizes: [usize; 6],
    has_bias: bool,
}

impl<How> Key<How> {
    fn new(problem: &Problem, how: How) -> Self {
        // Without `..`: choices depend on whatever else a problem will have.
        let Problem {
            batch,
            heads,
            heads_kv,
            head_dim,
            head_dim_v,
            additional,
            scale: _,
            has_bias,
            axes,
        } = *problem;
        let sizes = [batch, heads, heads_kv, head_dim, head_dim_v, additional];
        Self { how, axes, sizes, has_bias }
    }
}

/// What was chosen for each, the oldest out where there are too many.
pub(crate) struct Known<How, T> {
    choices: HashMap<Key<How>, T>,
    /// Keys in the order in which they came.
    order: VecDeque<Key<How>>,
}

impl<How, T> Default for Known<How, T> {
    fn default() -> Self {
        Self { choices: HashMap::new(), order: VecDeque::new() }
    }
}

impl<How: Clone + Eq + Hash, T> Known<How, T> {
    fn insert(&mut self, key: Key<How>, choice: T) {
        // Two threads may have chosen at once.
        if self.choices.insert(key.clone(), choice).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.choices.remove(&oldest);
        }
    }
}

/// What was chosen for each problem.
pub(crate) type Choices<How, T> = LazyLock<Mutex<Known<How, T>>>;

/// What `choose` gives for a problem, or gave. That there is nothing to choose is not remembered.
pub(crate) fn remembered<How: Clone + Eq + Hash, T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let key = Key::new(problem, how);
    let known = || choices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(choice) = known().choices.get(&key) {
        return Some(choice.clone());
    }
    // Not under the lock: a choice by measurement takes seconds.
    let choice = choose()?;
    known().insert(key, choice.clone());
    Some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    fn problem(batch: usize) -> Problem {
        catalogue::all()[0].problem.with_batch(batch)
    }

    #[test]
    fn a_choice_is_made_once_and_the_scale_is_none_of_it() {
        static KNOWN: Choices<u8, usize> = Choices::new(Default::default);
        assert_eq!(remembered(&KNOWN, &problem(1), 0, || Some(7)), Some(7));
        let other = problem(1).with_scale(3.0);
        assert_eq!(remembered(&KNOWN, &other, 0, || unreachable!("it is known")), Some(7));
        assert_eq!(remembered(&KNOWN, &other, 1, || Some(8)), Some(8));
        assert_eq!(remembered(&KNOWN, &problem(2), 0, || None), None);
        assert_eq!(remembered(&KNOWN, &problem(2), 0, || Some(9)), Some(9));
    }

    #[test]
    fn the_oldest_choices_go_where_there_are_too_many() {
        static KNOWN: Choices<(), usize> = Choices::new(Default::default);
        for batch in 0..MOST + 10 {
            remembered(&KNOWN, &problem(batch), (), || Some(batch));
        }
        let size = || {
            let known = KNOWN.lock().expect("nothing has panicked");
            assert_eq!(known.choices.len(), known.order.len());
            known.order.len()
        };
        assert_eq!(size(), MOST);
        let last = MOST + 9;
        assert_eq!(remembered(&KNOWN, &problem(last), (), || unreachable!("known")), Some(last));
        assert_eq!(remembered(&KNOWN, &problem(0), (), || Some(1)), Some(1));
        assert_eq!(size(), MOST);
    }
}
