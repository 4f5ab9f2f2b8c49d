//! Tests that need a process of their own.

use std::process::Command;

/// Says to a process that it is of one test alone.
const ALONE: &str = "BURN_NATTEN_TEST_ALONE";

/// Runs the body of the test of this name in a process that runs nothing else, and fails if it does.
#[track_caller]
pub fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let tests = std::env::current_exe().expect("this program");
    let mut child = Command::new(tests);
    child.args(["--exact", name, "--nocapture"]).env(ALONE, "1");
    let result = child.output().expect("this program once more");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&result.stdout), text(&result.stderr));
    let has_passed = result.status.success() && out.contains("1 passed");
    assert!(has_passed, "{name}: {out}\n{err}");
}
