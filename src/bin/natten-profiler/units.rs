//! Numbers and problems as text.

use std::time::Duration;

use burn_natten_kernels::cost::Limit;
use burn_natten_kernels::{MAX_RANK, Problem};

/// Three significant digits and a prefix: `12.3 T` of `FLOP` is "12.3 TFLOP".
pub fn si(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 5] =
        [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    if !value.is_finite() {
        return "unknown".to_string();
    }
    // Rounding carries: 999.6 k is 1.00 M.
    let (scale, prefix) =
        PREFIXES.into_iter().find(|(scale, _)| value.abs() >= 0.9995 * scale).unwrap_or((1.0, ""));
    let text = format!("{} {prefix}{unit}", digits(value / scale));
    text.trim_end().to_string()
}

/// A count: exact up to 99,999, three digits above.
pub fn count(value: u64) -> String {
    if value < 100_000 { value.to_string() } else { si(value as f64, "") }
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Seconds in the unit that suits them.
pub fn seconds(value: f64) -> String {
    match value {
        value if !value.is_finite() => "unknown".to_string(),
        value if value >= 0.9995 => format!("{} s", digits(value)),
        value if value >= 0.9995e-3 => format!("{} ms", digits(value * 1e3)),
        value => format!("{} us", digits(value * 1e6)),
    }
}

pub fn duration(value: Duration) -> String {
    seconds(value.as_secs_f64())
}

pub fn ratio(value: f64) -> String {
    format!("{} x", digits(value))
}

/// What bounds a kernel.
pub fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Compute => "arithmetic",
        Limit::Memory => "memory",
        Limit::Launch => "the launch",
    }
}

/// `30 x 48 x 80`.
pub fn axes(values: &[usize], between: &str) -> String {
    values.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
}

/// A tile without the axes that pad the problem.
pub fn tile(problem: &Problem, tile: [usize; MAX_RANK]) -> String {
    axes(&tile[MAX_RANK - problem.rank()..], " x ")
}

/// Space, windows and sizes on one line.
pub fn describe(problem: &Problem) -> String {
    let own = &problem.axes[MAX_RANK - problem.rank()..];
    let of = |value: fn(&burn_natten_kernels::Axis) -> usize| -> Vec<usize> {
        own.iter().map(value).collect()
    };
    let mut parts = Vec::new();
    let (queries, keys) = (of(|axis| axis.queries), of(|axis| axis.keys));
    let tokens = axes(&queries, " x ");
    parts.push(if queries == keys {
        format!("{tokens} tokens")
    } else {
        format!("{tokens} queries, {} keys", axes(&keys, " x "))
    });
    let is_dense = own.iter().all(|axis| axis.kernel_size == axis.keys) && own.len() == 1;
    if is_dense {
        parts.push(if own[0].is_causal { "dense, causal" } else { "dense" }.to_string());
    } else {
        parts.push(format!("window {}", axes(&of(|axis| axis.kernel_size), " x ")));
        for (name, values) in
            [("stride", of(|axis| axis.stride)), ("dilation", of(|axis| axis.dilation))]
        {
            if values.iter().any(|value| *value != 1) {
                parts.push(format!("{name} {}", axes(&values, " x ")));
            }
        }
        if own.iter().any(|axis| axis.is_causal) {
            let causal: Vec<_> = own.iter().map(|axis| usize::from(axis.is_causal)).collect();
            parts.push(format!("causal {}", axes(&causal, " x ")));
        }
    }
    if problem.has_bias {
        parts.push("position bias".to_string());
    }
    parts.push(format!("batch {}", problem.batch));
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    parts.push(if heads == heads_kv {
        format!("heads {heads}")
    } else {
        format!("heads {heads} on {heads_kv}")
    });
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    parts.push(if dim == dim_v {
        format!("head_dim {dim}")
    } else {
        format!("head_dim {dim} and {dim_v}")
    });
    if problem.additional > 0 {
        parts.push(format!("{} additional tokens", problem.additional));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_carry() {
        let cases = [
            (0.0, "0.00 B"),
            (1.234, "1.23 B"),
            (999.4, "999 B"),
            (999.6, "1.00 kB"),
            (12_345.0, "12.3 kB"),
            (999_700.0, "1.00 MB"),
            (7.9e14, "790 TB"),
            (f64::NAN, "unknown"),
        ];
        for (value, text) in cases {
            assert_eq!(si(value, "B"), text);
        }
        assert_eq!((count(99_999), count(299_012_345)), ("99999".into(), "299 M".into()));
        assert_eq!((digits(9.996), digits(99.96)), ("10.0".into(), "100".into()));
    }

    #[test]
    fn times_have_units() {
        for (value, text) in
            [(2.5, "2.50 s"), (0.9996, "1.00 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 us")]
        {
            assert_eq!(seconds(value), text);
        }
    }
}
