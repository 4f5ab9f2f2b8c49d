//! Problem by problem: what each implementation takes, and what others have published.

use std::collections::{BTreeMap, BTreeSet};

use burn_natten_kernels::catalogue::{self, Entry};

use super::record::{Pass, Record};
use super::style;

/// All results in one element type and mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub dtype: String,
    pub mode: String,
    pub device: String,
    /// Driver, or what stands for it.
    pub driver: String,
    /// `2026-11-21`, or the first and the last of several.
    pub dates: String,
    /// Versions of the implementations: commits of the library, versions of the peers.
    pub versions: Vec<String>,
    /// The library's own first.
    pub implementations: Vec<String>,
    /// In the order of the catalogue, forward before backward.
    pub rows: Vec<Row>,
}

/// One pass of one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub problem: String,
    pub pass: Pass,
    /// By implementation.
    pub cells: BTreeMap<String, Cell>,
    /// Published times on an H200, in bf16.
    pub published: Vec<Published>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub implementation: &'static str,
    pub ms: f64,
    /// Of the operations that the windows need.
    pub tflops: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Time { ms: f64, tflops: f64 },
    Missing(String),
}

impl Row {
    /// The fastest of the library's own implementations.
    pub fn own(&self) -> Option<(&str, f64, f64)> {
        let times = self.cells.iter().filter(|(name, _)| style::is_own(name));
        times
            .filter_map(|(name, cell)| match cell {
                Cell::Time { ms, tflops } => Some((name.as_str(), *ms, *tflops)),
                Cell::Missing(_) => None,
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Comparison {
    /// Whether the published times are of this device and element type.
    pub fn is_published_for(&self) -> bool {
        self.device.contains("H200") && self.dtype == "bf16"
    }
}

/// Groups the lines; of two for the same thing the later one counts.
pub fn join(records: Vec<Record>) -> Result<Vec<Comparison>, String> {
    let devices: BTreeSet<&str> = records.iter().map(|record| record.device.as_str()).collect();
    if devices.len() != 1 {
        let devices = devices.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("results are of the devices [{devices}], must be of one"));
    }
    let mut settings: BTreeMap<(String, String), Vec<Record>> = BTreeMap::new();
    for record in records {
        let setting = (record.dtype.clone(), record.mode.clone());
        settings.entry(setting).or_default().push(record);
    }
    let settings = settings.into_iter();
    Ok(settings.map(|((dtype, mode), records)| comparison(dtype, mode, records)).collect())
}

fn comparison(dtype: String, mode: String, records: Vec<Record>) -> Comparison {
    let entries: Vec<Entry> = catalogue::all().into_iter().chain(catalogue::small()).collect();
    let place = |problem: &str| {
        entries.iter().position(|entry| entry.name == problem).unwrap_or(entries.len())
    };
    let mut rows: BTreeMap<(usize, String, Pass), BTreeMap<String, Cell>> = BTreeMap::new();
    let (mut implementations, mut versions) = (BTreeSet::new(), BTreeSet::new());
    let mut dates = BTreeSet::new();
    let (mut device, mut driver) = (String::new(), String::new());
    for record in records {
        let name = style::implementation(&record.implementation);
        versions.insert(record.commit);
        dates.insert(record.date);
        (device, driver) = (record.device, record.driver);
        implementations.insert((style::rank(&name), name.clone()));
        let cell = match (record.ms, record.tflops) {
            (Some(ms), Some(tflops)) => Cell::Time { ms, tflops },
            _ => Cell::Missing(record.note),
        };
        let key = (place(&record.problem), record.problem, record.pass);
        rows.entry(key).or_default().insert(name, cell);
    }
    let rows = rows.into_iter().map(|((_, problem, pass), cells)| {
        let entry = entries.iter().find(|entry| entry.name == problem);
        let published = entry.map_or(vec![], |entry| published(entry, pass));
        Row { problem, pass, cells, published }
    });
    Comparison {
        dtype,
        mode,
        device,
        driver,
        dates: span(&dates),
        versions: versions.into_iter().collect(),
        implementations: implementations.into_iter().map(|(_, name)| name).collect(),
        rows: rows.collect(),
    }
}

fn published(entry: &Entry, pass: Pass) -> Vec<Published> {
    let times = entry.published.unwrap_or_default();
    let flops = match pass {
        Pass::Forward => entry.problem.forward_flops(),
        Pass::Backward => entry.problem.backward_flops(),
    };
    [(style::NATTEN, times.natten), (style::CUDNN, times.cudnn), (style::FLEX, times.flex)]
        .into_iter()
        .filter_map(|(implementation, times)| {
            let ms = match pass {
                Pass::Forward => times?.forward,
                Pass::Backward => times?.backward,
            };
            Some(Published { implementation, ms, tflops: flops as f64 / ms * 1e-9 })
        })
        .collect()
}

fn span(dates: &BTreeSet<String>) -> String {
    match (dates.first(), dates.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(first), _) => first.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{MADE_UP, parse};
    use super::*;

    fn made_up() -> Comparison {
        let mut all = join(parse(MADE_UP).expect("records")).expect("a comparison");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn rows_follow_the_catalogue() {
        let comparison = made_up();
        let rows: Vec<_> =
            comparison.rows.iter().map(|row| (row.problem.as_str(), row.pass)).collect();
        assert_eq!(
            rows,
            [
                ("dense-4k", Pass::Forward),
                ("flux", Pass::Forward),
                ("flux", Pass::Backward),
                ("hunyuan", Pass::Forward)
            ]
        );
        assert_eq!(
            comparison.implementations,
            ["burn-natten/Hopper", "burn-natten/Portable", "cuDNN", "flex_attention"]
        );
        assert_eq!(comparison.dates, "2000-01-02 to 2000-01-03");
        assert!(comparison.is_published_for());
    }

    #[test]
    fn cells_hold_times_or_reasons() {
        let comparison = made_up();
        assert_eq!(comparison.rows[1].own(), Some(("burn-natten/Hopper", 10.0, 515.0)));
        assert_eq!(comparison.rows[0].own(), None);
        let cell = &comparison.rows[2].cells["burn-natten/Portable"];
        assert!(matches!(cell, Cell::Missing(note) if note.starts_with("skipped")));
        // flux forward: 24 heads * 65536 queries * 6400 keys * 512 operations in 17.5 ms.
        let natten = &comparison.rows[1].published[0];
        assert_eq!((natten.implementation, natten.ms), ("NATTEN", 17.5));
        assert!((natten.tflops - 294.5).abs() < 0.1, "{}", natten.tflops);
    }

    #[test]
    fn the_later_of_two_lines_counts() {
        let mut records = parse(MADE_UP).expect("records");
        let mut again = records[1].clone();
        again.ms = Some(9.0);
        records.push(again);
        let all = join(records).expect("a comparison");
        assert_eq!(all[0].rows[1].own().map(|own| own.1), Some(9.0));
    }

    #[test]
    fn two_devices_are_not_compared() {
        let mut records = parse(MADE_UP).expect("records");
        records[0].device = "NVIDIA H100".to_string();
        let error = join(records).expect_err("two devices");
        assert_eq!(error, "results are of the devices [NVIDIA H100, NVIDIA H200], must be of one");
        assert!(join(vec![]).is_err());
    }
}
