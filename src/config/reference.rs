//! Every setting as a page to read: what the schema says, in the order of the file.

use std::fmt::Write;

use serde_json::Value as Json;

use super::render::{paths, schema};

/// A Markdown table for each section: setting, default, what it is.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = String::new();
    for path in paths() {
        let Some(node) = find(&schema, &path) else { continue };
        let doc = node["description"].as_str().unwrap_or_default().replace('|', "\\|");
        // Writing to a string cannot fail.
        let _ = if path.contains('.') {
            writeln!(page, "| `{path}` | {} | {doc} |", default(node))
        } else {
            writeln!(page, "\n## `{path}`\n\n{doc}\n\n| setting | default | what |\n|---|---|---|")
        };
    }
    page
}

fn find<'a>(schema: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(schema, |node, part| {
        let within = if node["items"].is_object() { &node["items"] } else { node };
        within["properties"].get(part.trim_end_matches("[]"))
    })
}

fn default(node: &Json) -> String {
    match node.get("default") {
        None => String::new(),
        Some(Json::String(text)) => format!("`{text}`"),
        Some(other) => format!("`{other}`"),
    }
}
