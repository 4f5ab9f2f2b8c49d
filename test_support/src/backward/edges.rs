//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;

use crate::compare::device;
use crate::oracle::{compute, visible};
use crate::tier::{BackwardTier, Case, check_all, upload_all};
use crate::{Data, axis, problem};

/// Every problem in every element type of the tier, by several plans.
pub fn check<T: BackwardTier>(problems: Vec<Problem>) {
    let Some(client) = device() else { return };
    check_all::<T>(&client, &cases::<T>(&client, problems, T::several));
}

/// Every problem in every element type of the tier, by some plans.
pub fn cases<T: BackwardTier>(
    client: &Client,
    problems: impl IntoIterator<Item = Problem>,
    plans: impl Fn(&Problem, T::Element) -> Vec<T::Plan>,
) -> Vec<Case<T>> {
    let mut cases = vec![];
    for problem in problems {
        for element in T::elements(client) {
            let plans = plans(&problem, element).into_iter();
            cases.extend(plans.map(|plan| (problem, element, plan)));
        }
    }
    cases
}

/// Causal attention of fewer queries than keys: nobody sees the last ones.
fn with_unseen_keys() -> Vec<Problem> {
    let (line, plane) =
        (Axis::dense(70, 300, true).with_origin(0), Axis::dense(5, 21, true).with_origin(0));
    let side = axis(11, 5, 2, 1, false);
    let space = [Axis::dense(3, 8, true).with_origin(0), side, axis(13, 4, 1, 2, true)];
    vec![
        problem(&[line], 64),
        problem(&[Axis::dense(1, 65, true).with_origin(0)], 128),
        problem(&[plane, side], 64),
        problem(&[side, plane], 128),
        problem(&space, 64).with_batch(1).with_heads(4),
        problem(&[line], 256).with_additional(9),
    ]
}

pub fn keys_that_nobody_sees<T: BackwardTier>() {
    check::<T>(with_unseen_keys());
}

/// Not nearly zeros, whatever their tiles hold.
pub fn gradients_of_unseen_keys_are_zeros<T: BackwardTier>() {
    let Some(client) = device() else { return };
    for problem in with_unseen_keys() {
        let mut is_seen = vec![false; problem.keys()];
        for query in 0..problem.queries() {
            visible(&problem, query).into_iter().for_each(|key| is_seen[key] = true);
        }
        assert!(is_seen.contains(&true) && is_seen.contains(&false), "{problem:?}");
        for element in T::elements(&client) {
            let data = Data::random(&problem, 9, element.into().round);
            let exact = compute(&problem, &data, element.into().round);
            let inputs = upload_all(&client, element, &problem, &data, &exact);
            for plan in T::plans(&problem, element) {
                let gradients = T::gradients(&client, element, &plan, &problem, &inputs);
                for (name, gradient) in
                    gradients.iter().filter(|(name, _)| ["dk", "dv"].contains(name))
                {
                    let of_token = gradient.len() / (problem.batch * problem.keys());
                    for (token, vectors) in gradient.chunks(of_token).enumerate() {
                        let is_zero = vectors.iter().all(|x| *x == 0.0);
                        let what =
                            || format!("{name} of key {token}, {}: {problem:?}", T::names(&plan));
                        assert!(is_seen[token % problem.keys()] || is_zero, "{}", what());
                    }
                }
            }
        }
    }
}
