//! The lines of the results.

use std::path::Path;

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    Forward,
    Backward,
}

impl Pass {
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// The columns that are compared. A line without a time says why in its note.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Record {
    pub problem: String,
    pub pass: Pass,
    pub implementation: String,
    pub dtype: String,
    pub mode: String,
    pub ms: Option<f64>,
    pub tflops: Option<f64>,
    pub note: String,
    pub device: String,
    pub driver: String,
    pub date: String,
    pub commit: String,
}

/// The lines of all files, in order.
pub fn read(files: &[impl AsRef<Path>]) -> Result<Vec<Record>, String> {
    let mut records = vec![];
    for file in files {
        let file = file.as_ref();
        let name = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| name(&error))?;
        records.extend(parse(&text).map_err(|error| name(&error))?);
    }
    Ok(records)
}

pub fn parse(text: &str) -> Result<Vec<Record>, csv::Error> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect()
}

/// Results that nobody has measured, for tests.
#[cfg(test)]
pub const MADE_UP: &str = "\
problem,pass,implementation,dtype,mode,ms,q1_ms,q3_ms,calls,tflops,gbps,error,note,device,driver,date,commit
hunyuan,forward,burn-natten/Hopper,bf16,burst,30.0,29.0,31.0,7,489.0,47.0,0.004,,NVIDIA H200,driver 1,2000-01-02,abc
flux,forward,burn-natten/Hopper,bf16,burst,10.0,9.9,10.1,7,515.0,160.0,0.004,,NVIDIA H200,driver 1,2000-01-02,abc
flux,forward,burn-natten/Portable,bf16,burst,2000.0,1990.0,2010.0,3,2.6,0.8,0.004,,NVIDIA H200,driver 1,2000-01-02,abc
flux,backward,burn-natten/Hopper,bf16,burst,40.0,39.0,41.0,7,322.0,80.0,0.006,,NVIDIA H200,driver 1,2000-01-02,abc
flux,backward,burn-natten/Portable,bf16,burst,,,,,,,,\"skipped: about 34 s a call, the limit is 20 s\",NVIDIA H200,driver 1,2000-01-02,abc
flux,forward,cuDNN dense,bf16,burst,80.0,79.0,81.0,7,64.0,20.0,0.003,,NVIDIA H200,driver 1,2000-01-03,torch
flux,forward,flex_attention,bf16,burst,25.0,24.0,26.0,7,206.0,64.0,0.003,,NVIDIA H200,driver 1,2000-01-03,torch
dense-4k,forward,cuDNN,bf16,burst,0.8,0.79,0.81,90,687.0,336.0,0.003,,NVIDIA H200,driver 1,2000-01-03,torch
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_a_time_are_read() {
        let records = parse(MADE_UP).expect("records");
        assert_eq!(records.len(), 8);
        assert_eq!((records[1].ms, records[1].pass), (Some(10.0), Pass::Forward));
        assert_eq!(records[4].ms, None);
        assert!(records[4].note.contains("34 s a call, the limit"));
    }

    #[test]
    fn a_missing_column_is_named() {
        let error = parse("problem,pass\nflux,forward\n").expect_err("columns are missing");
        assert!(error.to_string().contains("implementation"), "{error}");
    }
}
