//! From results, as the bench of the catalogue and the peers write them, to a comparison.

mod join;
mod plot;
mod record;
mod style;
mod table;

use std::path::{Path, PathBuf};

use clap::Args;

use self::plot::Quantity;
use crate::Outcome;

#[derive(Args, Debug)]
pub struct Flags {
    /// Results of one device; of two times for the same thing, the later file's counts
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Writes OUT.md, and two plots for each element type and mode
    #[arg(long)]
    out: PathBuf,
}

pub fn run(flags: &Flags) -> Outcome {
    let comparisons = join::join(record::read(&flags.files)?)?;
    let mut written = vec![flags.out.with_added_extension("md")];
    let mut plots = vec![];
    for comparison in &comparisons {
        for quantity in [Quantity::Time, Quantity::Rate] {
            let path = plot_path(&flags.out, comparison, quantity);
            write(&path, &plot::svg(comparison, quantity)?)?;
            plots.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            written.push(path);
        }
    }
    write(&written[0], &table::markdown(&comparisons, &plots))?;
    for path in written {
        println!("{}", path.display());
    }
    Ok(())
}

/// `OUT-bf16-burst-time.svg`
fn plot_path(out: &Path, comparison: &join::Comparison, quantity: Quantity) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(format!("-{}-{}-{}.svg", comparison.dtype, comparison.mode, quantity.name()));
    out.with_file_name(name)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("--out {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole way, from files to files. The figures are made up.
    #[test]
    fn a_table_and_two_plots_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let csv = folder.path().join("results.csv");
        std::fs::write(&csv, record::MADE_UP).expect("a file");
        let out = folder.path().join("compared");
        run(&Flags { files: vec![csv], out }).expect("a comparison");
        for name in
            ["compared.md", "compared-bf16-burst-time.svg", "compared-bf16-burst-tflops.svg"]
        {
            let text = std::fs::read_to_string(folder.path().join(name)).expect("is written");
            assert!(text.contains("flux"), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let flags = Flags { files: vec!["no-such.csv".into()], out: "compared".into() };
        let error = run(&flags).expect_err("there is no such file").to_string();
        assert!(error.starts_with("no-such.csv: "), "{error}");
    }
}
