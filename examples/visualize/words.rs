//! Text of the pictures: descriptions, ticks and legends.

use burn_natten::Axis;

use crate::drawing::{Area, Color, Drawing, FAINT, INK};

/// Size of a title.
pub const TITLE: f64 = 12.5;
/// Size of other text.
pub const SMALL: f64 = 10.0;

/// Room for a text in a wide sans-serif font.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// `16 × 16 tokens`.
pub fn space(axes: &[Axis]) -> String {
    let lengths: Vec<usize> = axes.iter().map(|axis| axis.queries).collect();
    format!("{} tokens", product(&lengths))
}

/// The parameters of windows that are not at their defaults.
pub fn windows(axes: &[Axis]) -> String {
    let per_axis = |value: fn(&Axis) -> usize| -> Vec<usize> { axes.iter().map(value).collect() };
    let mut parts = vec![format!("kernel {}", sizes(&per_axis(|axis| axis.kernel_size)))];
    for (name, values) in
        [("stride", per_axis(|axis| axis.stride)), ("dilation", per_axis(|axis| axis.dilation))]
    {
        if values.iter().any(|value| *value != 1) {
            parts.push(format!("{name} {}", sizes(&values)));
        }
    }
    let names = &["depth", "height", "width"][3 - axes.len()..];
    let causal: Vec<String> = axes
        .iter()
        .zip(names)
        .filter(|(axis, _)| axis.is_causal)
        .map(|(_, name)| name.to_string())
        .collect();
    if axes.len() == 1 && !causal.is_empty() {
        parts.push("causal".to_string());
    } else if !causal.is_empty() {
        parts.push(format!("causal along {}", list(&causal)));
    }
    parts.join(", ")
}

/// `7`, or `3 × 7` where axes differ.
pub fn sizes(values: &[usize]) -> String {
    if values.iter().all(|value| *value == values[0]) {
        return values[0].to_string();
    }
    product(values)
}

/// `3 × 7`.
pub fn product(values: &[usize]) -> String {
    values.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
}

/// `a, b and c`.
pub fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [words @ .., last] => format!("{} and {last}", words.join(", ")),
    }
}

/// Some five to ten numbers below `length`, evenly spaced from 0.
pub fn ticks(length: usize) -> impl Iterator<Item = usize> {
    let step = [1, 2, 5, 10, 20, 50, 100].into_iter().find(|step| length <= step * 10);
    (0..length).step_by(step.unwrap_or(length.div_ceil(10)))
}

/// Squares of colour, each with what it means behind it.
pub fn legend(entries: &[(Color, f64, String)]) -> Drawing {
    const SIDE: f64 = 11.0;
    let mut drawing = Drawing::new();
    let mut x = 16.0;
    for (color, opacity, text) in entries {
        drawing.fill(vec![Area { x, y: 8.0, width: SIDE, height: SIDE }], *color, *opacity);
        drawing.write(text.as_str(), [x + SIDE + 6.0, 17.5], SMALL + 1.0, INK);
        x += SIDE + 6.0 + width(text, SMALL + 1.0) + 16.0;
    }
    drawing.reach([x - 16.0, 17.5]);
    drawing
}

/// A line of explanation.
pub fn note(text: &str) -> Drawing {
    let mut drawing = Drawing::new();
    drawing.write(text, [16.0, 14.0], SMALL + 1.0, FAINT);
    drawing.reach([16.0 + width(text, SMALL + 1.0), 14.0]);
    drawing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_described_by_what_is_not_usual() {
        let axis = |kernel_size| Axis::neighborhood(20, kernel_size);
        assert_eq!(windows(&[axis(7), axis(7)]), "kernel 7");
        let causal = axis(3).with_causal(true).with_stride(2);
        assert_eq!(
            windows(&[causal, axis(7), axis(7)]),
            "kernel 3 × 7 × 7, stride 2 × 1 × 1, causal along depth"
        );
        assert_eq!(windows(&[causal]), "kernel 3, stride 2, causal");
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(ticks(16).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10, 12, 14]);
        assert_eq!(ticks(10).count(), 10);
        assert!((1..3000).all(|length| (1..=10).contains(&ticks(length).count())));
    }
}
