//! The folder of a training: what it has to agree with to be continued.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Failure;

/// The folder of checkpoints and logs: that of an earlier run to resume, otherwise an empty one.
///
/// `run` is what a checkpoint has to agree with. It is kept in `output/run.json`.
pub fn folder(output: &Path, run: &Value, is_resumed: bool) -> Result<PathBuf, Failure> {
    let (files, record) = (output.join("training"), output.join("run.json"));
    let earlier = || -> Option<Value> { serde_json::from_slice(&fs::read(&record).ok()?).ok() };
    if is_resumed {
        let earlier = earlier().ok_or_else(|| {
            Failure::Usage(format!("--resume: {} is no run to continue", output.display()))
        })?;
        return match difference("", &earlier, run) {
            None => Ok(files),
            Some(text) => Err(Failure::Usage(format!("--resume: {text}"))),
        };
    }
    if files.exists() {
        // Checkpoints of an earlier run would be mistaken for those of this one.
        if earlier().is_none() {
            let (files, record) = (files.display(), record.display());
            let text = format!("--output: {files} exists, but not {record}; choose another folder");
            return Err(Failure::Usage(text));
        }
        fs::remove_dir_all(&files).map_err(|error| Failure::cannot_write(&files, &error))?;
    }
    fs::create_dir_all(&files).map_err(|error| Failure::cannot_write(&files, &error))?;
    fs::write(&record, format!("{run:#}\n"))
        .map_err(|error| Failure::cannot_write(&record, &error))?;
    Ok(files)
}

/// The first value in which an earlier run and this one differ.
fn difference(name: &str, earlier: &Value, now: &Value) -> Option<String> {
    if let (Value::Object(before), Value::Object(after)) = (earlier, now) {
        return after.iter().find_map(|(name, after)| {
            difference(name, before.get(name).unwrap_or(&Value::Null), after)
        });
    }
    (earlier != now).then(|| format!("{name} is {now}, must be {earlier} as in the earlier run"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_resumed_as_it_was_started() {
        let run = json!({ "data": "a", "seed": 1, "model": { "kernel_size": 3 } });
        assert_eq!(difference("", &run, &run.clone()), None);
        for (pointer, value, expected) in [
            ("/seed", json!(2), "seed is 2, must be 1 as in the earlier run"),
            ("/data", json!("b"), "data is \"b\", must be \"a\" as in the earlier run"),
            ("/model/kernel_size", json!(5), "kernel_size is 5, must be 3 as in the earlier run"),
        ] {
            let mut other = run.clone();
            *other.pointer_mut(pointer).expect("is there") = value;
            assert_eq!(difference("", &run, &other).as_deref(), Some(expected));
        }
    }

    #[test]
    fn folders_that_are_no_run_are_not_touched() {
        let output = std::env::temp_dir().join(format!("runs-{}", std::process::id()));
        let run = json!({ "seed": 1 });
        let error = folder(&output, &run, true).expect_err("there is none").to_string();
        assert!(error.ends_with("is no run to continue"), "{error}");
        let files = folder(&output, &run, false).expect("is a new one");
        assert_eq!(folder(&output, &run, true).expect("is the same"), files);
        fs::remove_file(output.join("run.json")).expect("was written");
        let error = folder(&output, &run, false).expect_err("is not ours").to_string();
        assert!(error.ends_with("choose another folder"), "{error}");
        fs::remove_dir_all(&output).expect("is there");
    }
}
