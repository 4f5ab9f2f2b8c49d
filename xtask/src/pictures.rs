use crate::{Outcome, tools};

/// Draws the pictures of the documentation with the example that knows how.
pub fn run() -> Outcome {
    let example = ["run", "--quiet", "--example", "visualize", "--", "all", "docs/pictures"];
    Ok(tools::run(tools::cargo().args(example))?)
}
