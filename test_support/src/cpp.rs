//! The C++ compiler of the host.

use std::process::Command;

/// Its name, where there is one. Says so where there is none, and fails there with `BURN_NATTEN_REQUIRE_CXX=1`.
pub fn compiler() -> Option<&'static str> {
    let runs = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let found = ["c++", "g++", "clang++"].into_iter().find(runs);
    let is_required = std::env::var("BURN_NATTEN_REQUIRE_CXX").is_ok_and(|value| value == "1");
    assert!(found.is_some() || !is_required, "no C++ compiler");
    if found.is_none() {
        println!("passed without a run: no C++ compiler");
    }
    found
}
