//! The comparison in Markdown.

use std::fmt::Write;

use super::join::{Cell, Comparison, Row};
use super::style::{self, digits};

/// A table for each element type and mode, what could not be timed, and links to the plots.
pub fn markdown(comparisons: &[Comparison], plots: &[String]) -> String {
    let mut text = String::new();
    if let Some(first) = comparisons.first() {
        text +=
            &format!("# Comparison on {}\n\n{}, {}.\n\n", first.device, first.dates, first.driver);
    }
    text += "Milliseconds; in brackets the time over that of the fastest burn-natten row, so that \
             more than 1 is slower than it. TFLOP/s counts the operations that the windows need. \
             Dense columns compute attention over all tokens. Published times were measured on one \
             H200 in bf16, in short bursts, and not in this run.\n";
    for comparison in comparisons {
        section(&mut text, comparison);
    }
    text.push('\n');
    for plot in plots {
        text += &format!("![{plot}]({plot})\n");
    }
    text
}

fn section(text: &mut String, comparison: &Comparison) {
    let Comparison { dtype, mode, versions, implementations, rows, .. } = comparison;
    let published = published(comparison);
    let mut columns = vec!["problem".to_string(), "pass".to_string()];
    columns.extend(implementations.iter().map(|name| style::heading(name)));
    columns.push("TFLOP/s".to_string());
    columns.extend(published.iter().map(|name| format!("{}, published", style::heading(name))));
    // A `String` takes whatever is written to it.
    let _ = writeln!(text, "\n## {dtype}, {mode}\n\nVersions: {}.\n", versions.join("; "));
    let _ = writeln!(text, "| {} |", columns.join(" | "));
    let _ = writeln!(text, "|---|---{}|", "|---:".repeat(columns.len() - 2));
    let mut notes = vec![];
    for row in rows {
        let own = row.own();
        let ratio = |ms: f64| own.map_or(String::new(), |own| format!(" ({})", digits(ms / own.1)));
        let mut cells = vec![row.problem.clone(), row.pass.name().to_string()];
        for name in implementations {
            cells.push(match row.cells.get(name) {
                Some(Cell::Time { ms, .. }) if own.is_some_and(|own| own.0 == name) => {
                    format!("**{}**", digits(*ms))
                }
                Some(Cell::Time { ms, .. }) => format!("{}{}", digits(*ms), ratio(*ms)),
                Some(Cell::Missing(note)) => {
                    notes.push(note_of(row, name, note));
                    "–".to_string()
                }
                None => String::new(),
            });
        }
        cells.push(own.map_or(String::new(), |own| digits(own.2)));
        for name in &published {
            let time = row.published.iter().find(|time| time.implementation == *name);
            // A burst is no measure for a loaded device, nor this device's time for another's.
            let is_like = comparison.is_published_for() && mode == "burst";
            cells.push(time.map_or(String::new(), |time| {
                let ratio = if is_like { ratio(time.ms) } else { String::new() };
                format!("{}{ratio}", digits(time.ms))
            }));
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    if !notes.is_empty() {
        let _ = writeln!(text, "\nWithout a time:\n\n{}", notes.join("\n"));
    }
}

/// Who has published times for some row, where they are of this element type.
fn published(comparison: &Comparison) -> Vec<&'static str> {
    if comparison.dtype != "bf16" {
        return vec![];
    }
    let mut names: Vec<_> = comparison
        .rows
        .iter()
        .flat_map(|row| row.published.iter().map(|time| time.implementation))
        .collect();
    names.sort_by_key(|name| style::rank(name));
    names.dedup();
    names
}

fn note_of(row: &Row, implementation: &str, note: &str) -> String {
    let note = note.replace('\n', " ");
    format!("- {} {}, {implementation}: {note}", row.problem, row.pass.name())
}

#[cfg(test)]
mod tests {
    use super::super::join::join;
    use super::super::record::{MADE_UP, parse};
    use super::*;

    fn made_up(text: &str) -> String {
        let comparisons = join(parse(text).expect("records")).expect("a comparison");
        markdown(&comparisons, &["plot.svg".to_string()])
    }

    #[test]
    fn every_row_has_times_ratios_and_published_times() {
        let text = made_up(MADE_UP);
        for line in [
            "# Comparison on NVIDIA H200",
            "## bf16, burst",
            "| problem | pass | burn-natten/Hopper | burn-natten/Portable | cuDNN (dense) | \
             flex_attention | TFLOP/s | NATTEN, published | cuDNN (dense), published |",
            "| dense-4k | forward |  |  | 0.800 |  |  |  | 0.836 |",
            "| flux | forward | **10.0** | 2000 (200) | 80.0 (8.00) | 25.0 (2.50) | 515 | \
             17.5 (1.75) | 85.9 (8.59) |",
            "| flux | backward | **40.0** | – |  |  | 322 | 62.2 (1.56) | 241 (6.03) |",
            "- flux backward, burn-natten/Portable: skipped: about 34 s a call, the limit is 20 s",
            "![plot.svg](plot.svg)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn published_times_of_another_device_have_no_ratio() {
        let text = made_up(&MADE_UP.replace("H200", "H100"));
        assert!(text.contains("| 515 | 17.5 | 85.9 |"), "{text}");
        let text = made_up(&MADE_UP.replace("bf16", "f16"));
        assert!(!text.contains(", published |"), "{text}");
    }
}
