//! Where results go: standard error as they come, a CSV row by row, a table at the end.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::record::Record;

/// Collects the rows of a run.
pub struct Rows {
    rows: Vec<Record>,
    csv: Option<csv::Writer<File>>,
    out: Option<PathBuf>,
}

impl Rows {
    /// Creates `out.csv`, if there is a place for it.
    pub fn new(out: Option<&Path>) -> Result<Self, String> {
        let csv = match out {
            Some(out) => Some(create(&out.with_added_extension("csv"))?),
            None => None,
        };
        Ok(Self { rows: vec![], csv, out: out.map(Path::to_path_buf) })
    }

    /// Adds a row; it is on disk when this returns, whatever happens to the next one.
    pub fn push(&mut self, row: Record) -> Result<(), String> {
        eprintln!("{}", line(&row));
        if let Some(csv) = &mut self.csv {
            csv.serialize(&row).map_err(|error| error.to_string())?;
            csv.flush().map_err(|error| error.to_string())?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints the table, and writes it to `out.md`.
    pub fn finish(self, heading: &str) -> Result<(), String> {
        let table = crate::table::markdown(heading, &self.rows);
        println!("{table}");
        if let Some(out) = self.out {
            let path = out.with_added_extension("md");
            std::fs::write(&path, table)
                .map_err(|error| format!("--out {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<csv::Writer<File>, String> {
    csv::Writer::from_path(path).map_err(|error| format!("--out {}: {error}", path.display()))
}

fn line(row: &Record) -> String {
    let Record { problem, pass, implementation, dtype, mode, .. } = row;
    let result = match row.ms {
        Some(ms) => format!("{ms:.4} ms"),
        None => row.note.clone(),
    };
    format!("{problem} {pass} {implementation} {dtype} {mode}: {result}")
}
