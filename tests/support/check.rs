//! Comparisons.

/// Error allowed in f32, relative to the largest magnitude of the expected tensor.
pub const F32: f64 = 1e-5;

/// Fails unless `got` is within `tolerance * max |expected|` of `expected`, element by element.
/// Infinities must be where they are expected, and NaN is never right.
#[track_caller]
pub fn close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    close_in_unit(what, got, expected, tolerance, magnitude(expected));
}

/// [`close`], where the expected tensor may vanish: its magnitude counts as at least `least`.
#[track_caller]
pub fn close_to_unit(what: &str, got: &[f64], expected: &[f64], tolerance: f64, least: f64) {
    close_in_unit(what, got, expected, tolerance, magnitude(expected).max(least));
}

#[track_caller]
fn close_in_unit(what: &str, got: &[f64], expected: &[f64], tolerance: f64, unit: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (got - expected).abs();
        assert!(
            got == expected || error <= tolerance * unit,
            "{what}: element {index} is {got}, expected {expected}; error {:.2e} of {unit:.2e}",
            error / unit
        );
    }
}

/// Fails unless both are the same bits.
#[track_caller]
pub fn identical(what: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits();
        assert!(same, "{what}: element {index} is {got}, expected exactly {expected}");
    }
}

/// Fails unless there is NaN where it is expected, and nowhere else, and the rest is about what it should be. It has to be expected of
/// some values only.
#[track_caller]
pub fn nan_as_expected(what: &str, got: &[f64], expected: &[f64]) {
    assert!(expected.iter().any(|x| !x.is_nan()), "{what}: all is spoiled");
    for (index, (got, want)) in got.iter().zip(expected).enumerate() {
        let is_close = got == want || (got - want).abs() <= 100.0 * F32;
        let is_right = if want.is_nan() { got.is_nan() } else { is_close };
        assert!(is_right, "{what} {index}: {got} where {want} is expected");
    }
}

/// The largest finite magnitude.
pub fn magnitude(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).filter(|value| value.is_finite()).fold(0.0, f64::max)
}

/// Root mean square and maximum of the difference.
pub fn errors(got: &[f64], expected: &[f64]) -> (f64, f64) {
    assert_eq!(got.len(), expected.len());
    let differences = || got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
    let square = differences().map(|error| error * error).sum::<f64>() / got.len().max(1) as f64;
    (square.sqrt(), differences().fold(0.0, |max, error| if error > max { error } else { max }))
}
