//! Names, order and colours of the implementations, and how numbers are printed.

pub const NATTEN: &str = "NATTEN";
pub const CUDNN: &str = "cuDNN";
pub const FLEX: &str = "flex_attention";

/// Prefix of the library's own implementations.
const OWN: &str = "burn-natten/";

/// In the order of columns and bars, with colours that those who do not tell red from green tell
/// apart (after Okabe and Ito).
const KNOWN: [(&str, [u8; 3]); 10] = [
    ("burn-natten/Blackwell", [0, 62, 110]),
    ("burn-natten/Hopper", [0, 114, 178]),
    ("burn-natten/TensorCore", [44, 145, 200]),
    ("burn-natten/Portable", [86, 180, 233]),
    ("burn-natten/Flex", [0, 114, 178]),
    ("burn-natten/Reference", [150, 150, 150]),
    (NATTEN, [204, 121, 167]),
    (CUDNN, [0, 158, 115]),
    ("FlashAttention-2", [230, 159, 0]),
    (FLEX, [213, 94, 0]),
];

/// What a result is listed under: dense attention on a neighborhood problem shares the column of
/// dense attention.
pub fn implementation(name: &str) -> String {
    name.strip_suffix(" dense").unwrap_or(name).to_string()
}

/// A column's heading. Where dense attention stands beside windows, that has to be said.
pub fn heading(name: &str) -> String {
    match name {
        CUDNN | "FlashAttention-2" => format!("{name} (dense)"),
        _ => name.to_string(),
    }
}

pub fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// Place among the implementations: the library's own first, those not known here last.
pub fn rank(name: &str) -> (bool, usize) {
    let place = KNOWN.iter().position(|(known, _)| *known == name);
    (!is_own(name), place.unwrap_or(KNOWN.len()))
}

pub fn colour(name: &str) -> [u8; 3] {
    KNOWN.iter().find(|(known, _)| *known == name).map_or([90, 90, 90], |(_, colour)| *colour)
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.1 || value == 0.0 => 3,
        value if value >= 0.01 => 4,
        _ => return format!("{value:.1e}"),
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_own_come_first() {
        let mut names = ["zzz", "NATTEN", "burn-natten/New", "cuDNN", "burn-natten/Hopper"];
        names.sort_by_key(|name| rank(name));
        assert_eq!(names, ["burn-natten/Hopper", "burn-natten/New", "NATTEN", "cuDNN", "zzz"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        let printed = [1234.5, 99.96, 8.515, 0.5184, 0.0801, 0.00123].map(digits);
        assert_eq!(printed, ["1234", "100.0", "8.52", "0.518", "0.0801", "1.2e-3"]);
    }
}
