//! Tables that read well in a terminal and in Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table of which the first `left` columns are text and the others numbers.
pub fn new(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Lines of a name and what is to be said of it.
pub fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts.iter().map(|(name, text)| format!("{name:width$}  {text}\n")).collect()
}
