//! The walk that reads: a YAML tree over the defaults, every fault with its path.

use std::collections::{HashMap, HashSet};

use super::raw::Raw;
use super::settings::{self, Walk};
use super::value::Kind;
use super::yaml::Node;
use super::{Invalid, near, render};

/// Faults that are listed; a file of noise ends here.
const MAX_FAULTS: usize = 500;

/// Reads `document` over `raw`.
pub(super) fn read(document: &Node, raw: &mut Raw, faults: &mut Vec<Invalid>) {
    duplicates(document, "", faults);
    let mut reader = Reader { frames: Vec::new(), faults };
    reader.enter("", Some(document), |r| settings::walk(r, raw));
    if faults.len() > MAX_FAULTS {
        let more = faults.len() - MAX_FAULTS;
        faults.truncate(MAX_FAULTS);
        faults.push(Invalid::new("", format!("and {more} more faults")));
    }
}

/// Every key that one mapping holds more than once, at any depth: which one was meant is not ours to guess.
fn duplicates(node: &Node, path: &str, faults: &mut Vec<Invalid>) {
    match node {
        Node::Map(entries) => {
            let mut times: HashMap<String, u32> = HashMap::new();
            for (key, value) in entries {
                let path = join(path, &key_text(key));
                let times = times.entry(path.clone()).or_default();
                *times += 1;
                if *times == 2 {
                    faults.push(Invalid::new(path.clone(), "duplicate key; the same mapping gives it more than once"));
                }
                duplicates(value, &path, faults);
            }
        }
        Node::List(items) => {
            for (i, item) in items.iter().enumerate() {
                duplicates(item, &format!("{path}[{i}]"), faults);
            }
        }
        Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::Text(_) | Node::Tagged => (),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The key as a path shows it: one line, at most 80 characters, quoted unless it looks like a key.
fn key_text(key: &Node) -> String {
    let plain = |t: &str| !t.is_empty() && t.len() <= 80 && t.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    match key {
        Node::Text(text) if plain(text) => text.clone(),
        Node::Text(text) => format!("\"{}\"", text.chars().take(80).collect::<String>().escape_debug()),
        Node::Int(n) => n.to_string(),
        Node::Float(n) => n.to_string(),
        Node::Bool(b) => b.to_string(),
        Node::Null => "null".to_owned(),
        Node::List(_) | Node::Map(_) | Node::Tagged => format!("<{}>", key.kind()),
    }
}

struct Reader<'a> {
    frames: Vec<Frame<'a>>,
    faults: &'a mut Vec<Invalid>,
}

/// One mapping on the way down.
struct Frame<'a> {
    path: String,
    entries: &'a [(Node, Node)],
    known: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// The path and, if the file gives it, the value of a key of the innermost mapping.
    fn take(&mut self, key: &'static str) -> (String, Option<&'a Node>) {
        let Some(frame) = self.frames.last_mut() else { return (key.to_owned(), None) };
        frame.known.push(key);
        let entries: &'a [(Node, Node)] = frame.entries;
        let value = entries.iter().find(|(k, _)| matches!(k, Node::Text(text) if text == key)).map(|(_, v)| v);
        (join(&frame.path, key), value)
    }

    /// Walks `inside` over the mapping `node`; one that is absent, or holds comments only, is empty.
    fn enter(&mut self, path: &str, node: Option<&'a Node>, inside: impl FnOnce(&mut Self)) {
        let entries: &'a [(Node, Node)] = match node {
            Some(Node::Map(entries)) => entries,
            None | Some(Node::Null) => &[],
            Some(other) => {
                self.fault(path, format!("must be a mapping of settings, not {}", other.kind()));
                &[]
            }
        };
        self.frames.push(Frame { path: path.to_owned(), entries, known: Vec::new() });
        inside(self);
        if let Some(frame) = self.frames.pop() {
            self.unknown_keys(&frame);
        }
    }

    fn unknown_keys(&mut self, frame: &Frame<'_>) {
        let mut reported: HashSet<String> = HashSet::new();
        for (key, _) in frame.entries {
            let text = if let Node::Text(text) = key { Some(text.as_str()) } else { None };
            let shown = key_text(key);
            if text.is_some_and(|t| frame.known.contains(&t)) || reported.contains(&shown) {
                continue;
            }
            let hint = text.map_or_else(String::new, |t| hint(t, frame));
            self.fault(&join(&frame.path, &shown), format!("unknown key{hint}"));
            reported.insert(shown);
        }
    }

    fn fault(&mut self, path: &str, text: impl Into<String>) {
        self.faults.push(Invalid::new(path, text));
    }
}

/// What the unknown key was probably meant to be: a key of this mapping, or the same key elsewhere.
fn hint(key: &str, frame: &Frame<'_>) -> String {
    if let Some(near) = near(key, frame.known.iter().copied()) {
        return format!("; did you mean {near}?");
    }
    let elsewhere: Vec<String> = render::paths().into_iter().filter(|p| p.rsplit('.').next() == Some(key)).collect();
    if elsewhere.is_empty() { String::new() } else { format!(" here; there is {}", elsewhere.join(" and ")) }
}

impl Walk for Reader<'_> {
    fn section(&mut self, key: &'static str, _doc: &'static str, inside: impl FnOnce(&mut Self)) {
        let (path, node) = self.take(key);
        self.enter(&path, node, inside);
    }

    fn setting<K: Kind>(&mut self, key: &'static str, kind: &K, value: &mut K::Value, _doc: &'static str) {
        let (path, node) = self.take(key);
        match node.map(|n| kind.parse(n)) {
            Some(Ok(read)) => *value = read,
            Some(Err(text)) => self.fault(&path, text),
            None => (),
        }
    }

    fn list<T: Default>(
        &mut self,
        key: &'static str,
        (min, max): (usize, usize),
        items: &mut Vec<T>,
        _doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    ) {
        let (path, node) = self.take(key);
        let Some(node) = node else { return };
        let Node::List(nodes) = node else {
            let empty = if *node == Node::Null { "; leave the key out for the default" } else { "" };
            return self.fault(&path, format!("must be a list, not {}{empty}", node.kind()));
        };
        if nodes.len() > max {
            self.fault(&path, format!("{} entries are out of bounds: {min} to {max}", nodes.len()));
        }
        items.clear();
        for (i, node) in nodes.iter().enumerate() {
            let mut item = T::default();
            let path = format!("{path}[{i}]");
            // An entry of nothing (a lone dash) is a fault; a section of nothing is not.
            if *node == Node::Null {
                self.fault(&path, "has no value");
            } else {
                self.enter(&path, Some(node), |r| each(r, &mut item));
            }
            items.push(item);
        }
    }
}
