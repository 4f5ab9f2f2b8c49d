//! `--list`: the problems of the catalogue.

use burn_natten_kernels::catalogue;
use serde_json::json;

use crate::print::{json, table};
use crate::units;

pub fn run(as_json: bool) -> String {
    let entries = catalogue::all().into_iter().chain(catalogue::small());
    if as_json {
        let entries: Vec<_> = entries
            .map(|entry| json!({ "name": entry.name, "problem": json::problem(&entry.problem) }))
            .collect();
        return json::text(json!(entries));
    }
    let mut table = table::new(&["name", "problem"], 2);
    for entry in entries {
        table.add_row([entry.name.to_string(), units::describe(&entry.problem)]);
    }
    table.to_string()
}
