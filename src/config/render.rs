//! The walks that write: the effective configuration, the commented file, the JSON Schema, the list of paths.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use super::Config;
use super::place::HttpUrl;
use super::raw::Raw;
use super::settings::{self, Walk};
use super::value::Kind;
use super::yaml::Node;

/// The effective configuration in the order of the file, ready for any serializer. Of secrets it has the path only.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective(pub(super) Node);

impl Serialize for Effective {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The effective configuration as data.
#[must_use]
pub fn effective(config: &Config) -> Effective {
    let mut writer = Writer { frames: vec![Vec::new()] };
    settings::walk(&mut writer, &mut Raw::from(config));
    Effective(Node::Map(writer.frames.pop().unwrap_or_default()))
}

/// The effective configuration as YAML. Loading it gives the same configuration.
#[must_use]
pub fn render(config: &Config) -> String {
    scalar(&effective(config).0)
}

/// The file to start from: every setting with its default, its reason, unit and bounds as comments.
#[must_use]
pub fn example() -> String {
    let mut raw = Raw::default();
    raw.hangar.url = HttpUrl::parse_text("http://127.0.0.1:8000").ok();
    let mut page = Page { text: HEAD.to_owned(), depth: 0, quiet: false, dash: false };
    settings::walk(&mut page, &mut raw);
    page.text
}

/// JSON Schema (2020-12) of the file.
#[must_use]
pub fn schema() -> Json {
    let mut describer = Describer { frames: vec![Map::new()], required: Vec::new() };
    settings::walk(&mut describer, &mut Raw::default());
    let properties = describer.frames.pop().unwrap_or_default();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hangar-medic configuration",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": properties,
    })
}

/// The path of every setting and section; entries of a list as `[]`.
pub(super) fn paths() -> Vec<String> {
    let mut lister = Lister::default();
    settings::walk(&mut lister, &mut Raw::default());
    lister.paths
}

const HEAD: &str = "\
# hangar-medic: every setting with its default, unit, bounds and reason. Only hangar.url is needed.
# Times are whole numbers with a unit (ms, s, m, h, d): 5s, 1h 30m. Sizes: B, KiB, MiB, GiB.
# Relative paths start at the working directory. Flags of `hangar-medic run` go over the file.
# Judge a file with `hangar-medic check-config FILE`: unknown and duplicate keys are faults.
";

/// The reason and the bounds; a setting without a default says all in its reason.
fn explained(doc: &str, kind: &impl Kind) -> String {
    let hint = if kind.required() { String::new() } else { kind.hint() };
    if hint.is_empty() { doc.to_owned() } else { format!("{doc} ({hint})") }
}

/// Width of a comment line.
const WIDTH: usize = 120;

fn scalar(node: &Node) -> String {
    // A tree of texts and numbers always serializes; a comment keeps the document readable should that ever change.
    serde_yaml::to_string(node).unwrap_or_else(|e| format!("# {e}\n"))
}

struct Writer {
    frames: Vec<Vec<(Node, Node)>>,
}

impl Writer {
    fn put(&mut self, key: &'static str, value: Node) {
        if let Some(frame) = self.frames.last_mut() {
            frame.push((Node::text(key), value));
        }
    }

    fn map(&mut self, inside: impl FnOnce(&mut Self)) -> Node {
        self.frames.push(Vec::new());
        inside(self);
        Node::Map(self.frames.pop().unwrap_or_default())
    }
}

impl Walk for Writer {
    fn section(&mut self, key: &'static str, _doc: &'static str, inside: impl FnOnce(&mut Self)) {
        let map = self.map(inside);
        self.put(key, map);
    }

    fn setting<K: Kind>(&mut self, key: &'static str, kind: &K, value: &mut K::Value, _doc: &'static str) {
        self.put(key, kind.show(value));
    }

    fn list<T: Default>(
        &mut self,
        key: &'static str,
        _bounds: (usize, usize),
        items: &mut Vec<T>,
        _doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    ) {
        let list = items.iter_mut().map(|item| self.map(|w| each(w, item))).collect();
        self.put(key, Node::List(list));
    }
}

struct Page {
    text: String,
    depth: usize,
    /// Second and later entries of a list: their comments would repeat.
    quiet: bool,
    /// The next key opens a list entry.
    dash: bool,
}

impl Page {
    fn line(&mut self, text: &str) {
        let indent = "  ".repeat(self.depth);
        self.text.extend([indent.as_str(), text, "\n"]);
    }

    /// A list of words on as few lines as they need.
    fn inline(&mut self, key: &str, items: &[Node]) {
        let indent = "  ".repeat(self.depth + 1);
        let mut line = format!("{}{key}: [", "  ".repeat(self.depth));
        for (i, item) in items.iter().enumerate() {
            let comma = if i + 1 < items.len() { "," } else { "" };
            let word = format!("{}{comma}", scalar(item).trim_end());
            if line.len() + 1 + word.len() > WIDTH {
                self.text.extend([line.trim_end(), "\n"]);
                line.clone_from(&indent);
            } else if i > 0 {
                line.push(' ');
            }
            line.push_str(&word);
        }
        self.text.extend([line.as_str(), "]\n"]);
    }

    /// The text as comment lines of at most `WIDTH` characters, where the key will stand.
    fn comment(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let depth = self.depth - usize::from(self.dash);
        let indent = "  ".repeat(depth);
        let mut line = format!("{indent}#");
        for word in text.split(' ') {
            if line.len() + 1 + word.len() > WIDTH {
                self.text.extend([line.as_str(), "\n"]);
                line = format!("{indent}#");
            }
            line.extend([" ", word]);
        }
        self.text.extend([line.as_str(), "\n"]);
    }
}

impl Walk for Page {
    fn section(&mut self, key: &'static str, doc: &'static str, inside: impl FnOnce(&mut Self)) {
        self.text.push('\n');
        self.comment(doc);
        self.line(&format!("{key}:"));
        self.depth += 1;
        inside(self);
        self.depth -= 1;
    }

    fn setting<K: Kind>(&mut self, key: &'static str, kind: &K, value: &mut K::Value, doc: &'static str) {
        self.comment(&explained(doc, kind));
        let shown = kind.show(value);
        if let Node::List(items) = &shown {
            return self.inline(key, items);
        }
        let value = scalar(&shown);
        let value = value.trim_end();
        if self.dash {
            self.depth -= 1;
            self.line(&format!("- {key}: {value}"));
            self.depth += 1;
            self.dash = false;
        } else {
            self.line(&format!("{key}: {value}"));
        }
    }

    fn list<T: Default>(
        &mut self,
        key: &'static str,
        _bounds: (usize, usize),
        items: &mut Vec<T>,
        doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    ) {
        self.comment(doc);
        if items.is_empty() {
            return self.line(&format!("{key}: []"));
        }
        self.line(&format!("{key}:"));
        self.depth += 2;
        for item in items {
            self.dash = true;
            each(self, item);
            self.quiet = true;
        }
        self.depth -= 2;
        (self.quiet, self.dash) = (false, false);
    }
}

struct Describer {
    frames: Vec<Map<String, Json>>,
    /// Keys that the entry of the list at hand cannot leave out.
    required: Vec<&'static str>,
}

impl Describer {
    fn put(&mut self, key: &'static str, mut schema: Json, doc: &str) {
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), doc.into());
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(key.to_owned(), schema);
        }
    }

    fn object(&mut self, inside: impl FnOnce(&mut Self)) -> Map<String, Json> {
        self.frames.push(Map::new());
        inside(self);
        self.frames.pop().unwrap_or_default()
    }
}

impl Walk for Describer {
    fn section(&mut self, key: &'static str, doc: &'static str, inside: impl FnOnce(&mut Self)) {
        let properties = self.object(inside);
        self.put(key, json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties}), doc);
    }

    fn setting<K: Kind>(&mut self, key: &'static str, kind: &K, value: &mut K::Value, doc: &'static str) {
        let mut schema = kind.schema();
        if kind.required() {
            self.required.push(key);
            return self.put(key, schema, doc);
        }
        let default = kind.show(value);
        if let (Some(schema), Ok(default)) = (schema.as_object_mut(), serde_json::to_value(&default)) {
            schema.insert("default".to_owned(), default);
        }
        self.put(key, schema, &explained(doc, kind));
    }

    fn list<T: Default>(
        &mut self,
        key: &'static str,
        (min, max): (usize, usize),
        _items: &mut Vec<T>,
        doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    ) {
        let properties = self.object(|d| each(d, &mut T::default()));
        let required = std::mem::take(&mut self.required);
        let item = json!({"type": "object", "additionalProperties": false, "properties": properties, "required": required});
        self.put(key, json!({"type": "array", "minItems": min, "maxItems": max, "items": item}), doc);
    }
}

#[derive(Default)]
struct Lister {
    prefix: Vec<String>,
    paths: Vec<String>,
}

impl Lister {
    fn put(&mut self, key: &str) -> String {
        let path = self.prefix.iter().map(String::as_str).chain([key]).collect::<Vec<_>>().join(".");
        self.paths.push(path);
        key.to_owned()
    }
}

impl Walk for Lister {
    fn section(&mut self, key: &'static str, _doc: &'static str, inside: impl FnOnce(&mut Self)) {
        let key = self.put(key);
        self.prefix.push(key);
        inside(self);
        self.prefix.pop();
    }

    fn setting<K: Kind>(&mut self, key: &'static str, _kind: &K, _value: &mut K::Value, _doc: &'static str) {
        self.put(key);
    }

    fn list<T: Default>(
        &mut self,
        key: &'static str,
        _bounds: (usize, usize),
        _items: &mut Vec<T>,
        _doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    ) {
        self.put(key);
        self.prefix.push(format!("{key}[]"));
        each(self, &mut T::default());
        self.prefix.pop();
    }
}
