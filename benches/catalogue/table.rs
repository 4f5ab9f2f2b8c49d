//! The results as a Markdown table.

use std::fmt::Write;

use crate::record::Record;

const COLUMNS: &str = "\
| problem | pass | implementation | dtype | mode | ms | quartiles | calls | TFLOP/s | GB/s | error | note |
|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---|
";

/// A heading, the table, and what its columns mean.
pub fn markdown(heading: &str, rows: &[Record]) -> String {
    let mut text = format!("{heading}\n\n{COLUMNS}");
    for row in rows {
        let Record { problem, pass, implementation, dtype, mode, note, .. } = row;
        let quartiles = match (row.q1_ms, row.q3_ms) {
            (Some(q1), Some(q3)) => format!("{} – {}", digits(q1), digits(q3)),
            _ => String::new(),
        };
        let number = |value: Option<f64>| value.map_or(String::new(), digits);
        let error = row.error.map_or(String::new(), |error| format!("{error:.1e}"));
        let calls = row.calls.map_or(String::new(), |calls| calls.to_string());
        let note = note.replace('|', "\\|").replace('\n', " ");
        let (ms, tflops, gbps) = (number(row.ms), number(row.tflops), number(row.gbps));
        // A `String` takes whatever is written to it.
        let _ = writeln!(
            text,
            "| {problem} | {pass} | {implementation} | {dtype} | {mode} | {ms} | {quartiles} | \
             {calls} | {tflops} | {gbps} | {error} | {note} |"
        );
    }
    text.push_str(
        "\nms: median of the samples, each the mean of a batch of calls. TFLOP/s: operations that \
         the windows need. GB/s: bytes of all tensors, each once. error: greatest difference from \
         float64 on sampled rows, over their greatest value.\n",
    );
    text
}

/// Four significant digits.
pub fn digits(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-2 {
        return format!("{value:.2e}");
    }
    let decimals = match value.abs() {
        value if value >= 1000.0 => 0,
        value if value >= 100.0 => 1,
        value if value >= 10.0 => 2,
        value if value >= 1.0 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}
