//! YAML text to a tree that has kept everything the reader needs to refuse it: every key, also the second of its name.
//!
//! `serde_yaml` hands duplicate keys on silently, and the last one would win: a dropped safety limit.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Invalid, MAX_FILE};

/// Values in one document, aliases expanded: bounds what a chain of anchors can grow to.
const MAX_NODES: u32 = 20_000;
/// Nesting; the deepest setting has four levels.
const MAX_DEPTH: u8 = 32;
/// Opening brackets: libyaml's time grows with the square of their nesting (a 1 MiB run of `{a: ` takes minutes).
const MAX_BRACKETS: usize = 1_000;

/// One YAML value. Mappings keep every entry in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// A value with a tag of its own (`!name value`); no setting takes one.
    Tagged,
}

impl Node {
    /// What the value is, for a message; never its content, which may be a secret in the wrong place.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Tagged => "a tagged value",
        }
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null | Self::Tagged => serializer.serialize_unit(),
            Self::Bool(b) => serializer.serialize_bool(*b),
            Self::Int(i) => serializer.serialize_i64(*i),
            Self::Float(f) => serializer.serialize_f64(*f),
            Self::Text(t) => serializer.serialize_str(t),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// The one document of `bytes`; an empty file reads as `Null`.
///
/// Errors: not UTF-8, too large, not YAML, more than one document, nested too deep or expanded too far.
pub(super) fn parse(bytes: &[u8]) -> Result<Node, Invalid> {
    let refuse = |text: String| Invalid::new("", text);
    if bytes.len() > MAX_FILE {
        return Err(refuse(format!("larger than {MAX_FILE} bytes")));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| refuse(format!("not UTF-8 at byte {}", e.valid_up_to())))?;
    if text.bytes().filter(|b| matches!(b, b'[' | b'{')).count() > MAX_BRACKETS {
        return Err(refuse(format!("holds more than {MAX_BRACKETS} opening brackets")));
    }
    let limits = Limits { left: Cell::new(MAX_NODES), exceeded: Cell::new(None) };
    let mut document = None;
    for found in serde_yaml::Deserializer::from_str(text) {
        if document.is_some() {
            return Err(refuse("holds more than one YAML document".to_owned()));
        }
        let seed = Seed { limits: &limits, depth: 0 };
        document = Some(seed.deserialize(found).map_err(|e| match limits.exceeded.take() {
            // The library would put the whole path to the place in front of it.
            Some(limit) => refuse(limit),
            None => refuse(format!("not valid YAML: {}", one_line(&e.to_string()))),
        })?);
    }
    Ok(document.unwrap_or(Node::Null))
}

/// One line, printable, at most 200 characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars().take(200).flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// What one document may still hold, and the limit that it went over.
struct Limits {
    left: Cell<u32>,
    exceeded: Cell<Option<String>>,
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    limits: &'a Limits,
    depth: u8,
}

impl Seed<'_> {
    fn inside(self) -> Self {
        Self { depth: self.depth.saturating_add(1), ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        let exceeded = match self.limits.left.get().checked_sub(1) {
            None => Some(format!("holds more than {MAX_NODES} values")),
            Some(_) if self.depth > MAX_DEPTH => Some(format!("nested deeper than {MAX_DEPTH} levels")),
            Some(left) => {
                self.limits.left.set(left);
                None
            }
        };
        if exceeded.is_some() {
            self.limits.exceeded.set(exceeded);
            return Err(D::Error::custom("over a limit"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        // No setting reaches this far: the bound refuses it either way.
        Ok(Node::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Int(i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.inside())? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry_seed(self.inside(), self.inside())? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        let (_, contents) = data.variant::<String>()?;
        contents.newtype_variant_seed(self.inside())?;
        Ok(Node::Tagged)
    }
}
