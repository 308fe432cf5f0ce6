//! The kinds of value a setting can have: how each is read, written, bounded and described.

use std::fmt::Display;
use std::marker::PhantomData;
use std::num::{NonZeroU8, NonZeroU32};
use std::str::FromStr;

use jiff::SignedDuration;
use serde_json::{Value as Json, json};

use super::yaml::Node;

/// One kind of value. Errors are texts for the person who wrote the file; they never repeat a URL or a secret.
pub(super) trait Kind {
    type Value;
    fn parse(&self, node: &Node) -> Result<Self::Value, String>;
    fn show(&self, value: &Self::Value) -> Node;
    /// JSON Schema of the value.
    fn schema(&self) -> Json;
    /// Bounds in words; empty where there are none to tell.
    fn hint(&self) -> String;
    /// Whether the mapping that takes it cannot leave it out.
    fn required(&self) -> bool {
        false
    }
}

/// A value of another type than expected, without its content.
pub(super) fn wrong_type(expected: &str, found: &Node) -> String {
    match found {
        Node::Null => format!("has no value; leave the key out for the default, or give {expected}"),
        Node::Text(_) | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::List(_) | Node::Map(_) | Node::Tagged => {
            format!("must be {expected}, not {}", found.kind())
        }
    }
}

/// The value in quotes, on one line, at most 80 characters of it.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.chars().take(80).collect::<String>().escape_debug())
}

/// A time span, written with its unit.
pub(super) struct Duration {
    min: SignedDuration,
    max: SignedDuration,
    or_zero: bool,
}

/// A duration from `min` to `max`.
pub(super) const fn duration(min: SignedDuration, max: SignedDuration) -> Duration {
    Duration { min, max, or_zero: false }
}

impl Duration {
    /// Also takes `0s`.
    pub(super) const fn or_zero(self) -> Self {
        Self { or_zero: true, ..self }
    }
}

/// Units and their milliseconds, the largest first.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Kind for Duration {
    type Value = SignedDuration;

    fn parse(&self, node: &Node) -> Result<SignedDuration, String> {
        let value = match node {
            Node::Text(text) => parse_duration(text)?,
            Node::Int(n) if *n < 0 => return Err("must not be negative".to_owned()),
            Node::Float(n) if *n < 0.0 => return Err("must not be negative".to_owned()),
            Node::Int(n) => return Err(format!("has no unit; write \"{n}s\" for seconds (ms, s, m, h, d)")),
            Node::Float(_) => return Err("has no unit; write whole numbers with units, for example \"1s 500ms\"".to_owned()),
            Node::Null | Node::Bool(_) | Node::List(_) | Node::Map(_) | Node::Tagged => {
                return Err(wrong_type("a duration such as \"5s\" or \"1h 30m\"", node));
            }
        };
        if (self.min..=self.max).contains(&value) || (self.or_zero && value.is_zero()) {
            return Ok(value);
        }
        Err(format!("{} is out of bounds: {}", show_duration(value), self.hint()))
    }

    fn show(&self, value: &SignedDuration) -> Node {
        Node::text(show_duration(*value))
    }

    fn schema(&self) -> Json {
        json!({
            "type": "string",
            "pattern": "^\\s*([0-9]+\\s*d)?\\s*([0-9]+\\s*h)?\\s*([0-9]+\\s*m)?\\s*([0-9]+\\s*s)?\\s*([0-9]+\\s*ms)?\\s*$",
            "minLength": 2,
        })
    }

    fn hint(&self) -> String {
        let zero = if self.or_zero && !self.min.is_zero() { "0s, or " } else { "" };
        format!("{zero}{} to {}", show_duration(self.min), show_duration(self.max))
    }
}

/// Reads `1h 30m`: whole numbers, units d, h, m, s, ms, each once and the largest first.
pub fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    let malformed = || format!("{} is not a duration; write for example \"5s\" or \"1h 30m\" (ms, s, m, h, d)", quoted(text));
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(malformed());
    }
    if rest.starts_with('-') {
        return Err("must not be negative".to_owned());
    }
    let mut total: u64 = 0;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let (digits, after) = split_while(rest, |c| c.is_ascii_digit());
        let (unit, after) = split_while(after.trim_start(), char::is_alphabetic);
        if digits.is_empty() {
            return Err(malformed());
        }
        if unit.is_empty() {
            let fraction = after.starts_with(['.', ',']);
            return Err(if fraction {
                format!("{}: whole numbers only, for example \"1s 500ms\"", quoted(text))
            } else if after.is_empty() {
                format!("{} has no unit; write \"{digits}s\" for seconds (ms, s, m, h, d)", quoted(text))
            } else {
                malformed()
            });
        }
        let Some((_, millis)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("{}: unknown unit {}; known: ms, s, m, h, d", quoted(text), quoted(unit)));
        };
        if *millis >= last_unit {
            return Err(format!("{}: each unit once, the largest first", quoted(text)));
        }
        last_unit = *millis;
        let part = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(*millis));
        total = part.and_then(|p| total.checked_add(p)).ok_or_else(|| format!("{} is too long", quoted(text)))?;
        rest = after.trim_start();
    }
    i64::try_from(total).map(SignedDuration::from_millis).map_err(|_| format!("{} is too long", quoted(text)))
}

fn split_while(text: &str, take: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !take(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// A time that reading the configuration has proved not to be negative.
#[must_use]
pub fn unsigned(duration: SignedDuration) -> std::time::Duration {
    std::time::Duration::try_from(duration).unwrap_or_default()
}

/// The shortest form that reads back to the same time: `1h 30m`, `400d`, `0s`. Below a millisecond nothing is kept.
pub fn show_duration(value: SignedDuration) -> String {
    let mut left = value.unsigned_abs().as_millis();
    let mut parts = Vec::new();
    for (unit, millis) in DURATION_UNITS {
        let millis = u128::from(millis);
        if left >= millis {
            parts.push(format!("{}{unit}", left / millis));
            left %= millis;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// A size in bytes, written `64MiB`.
pub(super) struct Size {
    pub(super) min: u64,
    pub(super) max: u64,
}

const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Kind for Size {
    type Value = u64;

    fn parse(&self, node: &Node) -> Result<u64, String> {
        let text = match node {
            Node::Text(text) => text.trim(),
            Node::Int(n) if *n < 0 => return Err("must not be negative".to_owned()),
            Node::Int(n) => return Err(format!("has no unit; write \"{n}B\" for bytes (B, KiB, MiB, GiB)")),
            Node::Null | Node::Bool(_) | Node::Float(_) | Node::List(_) | Node::Map(_) | Node::Tagged => {
                return Err(wrong_type("a size such as \"64MiB\"", node));
            }
        };
        let (digits, unit) = split_while(text, |c| c.is_ascii_digit());
        let unit = unit.trim_start();
        if text.starts_with('-') {
            return Err("must not be negative".to_owned());
        }
        if digits.is_empty() {
            return Err(format!("{} is not a size; write for example \"64MiB\" (B, KiB, MiB, GiB)", quoted(text)));
        }
        if unit.is_empty() {
            return Err(format!("{} has no unit; write \"{digits}B\" for bytes (B, KiB, MiB, GiB)", quoted(text)));
        }
        let Some((_, bytes)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("{}: unknown unit {}; known: B, KiB, MiB, GiB", quoted(text), quoted(unit)));
        };
        let size = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(*bytes)).unwrap_or(u64::MAX);
        if (self.min..=self.max).contains(&size) {
            return Ok(size);
        }
        Err(format!("{} is out of bounds: {}", quoted(text), self.hint()))
    }

    fn show(&self, value: &u64) -> Node {
        Node::text(show_size(*value))
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^\\s*[0-9]+\\s*(B|KiB|MiB|GiB)\\s*$"})
    }

    fn hint(&self) -> String {
        format!("{} to {}", show_size(self.min), show_size(self.max))
    }
}

fn show_size(value: u64) -> String {
    let whole = SIZE_UNITS.iter().find(|(_, bytes)| value >= *bytes && value.is_multiple_of(*bytes));
    whole.map_or_else(|| format!("{value}B"), |(unit, bytes)| format!("{}{unit}", value / bytes))
}

/// A whole number from 1 up, kept as `N` (a `NonZero` integer).
pub(super) struct Count<N> {
    min: u32,
    max: u32,
    kept_as: PhantomData<N>,
}

/// A whole number from `min` to `max`.
pub(super) const fn count<N>(min: u32, max: u32) -> Count<N> {
    Count { min, max, kept_as: PhantomData }
}

impl<N: Counted> Kind for Count<N> {
    type Value = N;

    fn parse(&self, node: &Node) -> Result<N, String> {
        let Node::Int(n) = node else { return Err(wrong_type("a whole number", node)) };
        let within = u32::try_from(*n).ok().filter(|n| (self.min..=self.max).contains(n));
        within.and_then(N::from_count).ok_or_else(|| format!("{n} is out of bounds: {}", self.hint()))
    }

    fn show(&self, value: &N) -> Node {
        Node::Int(value.count().into())
    }

    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max})
    }

    fn hint(&self) -> String {
        format!("{} to {}", self.min, self.max)
    }
}

/// An integer type that holds a count.
pub(super) trait Counted: Copy {
    fn from_count(n: u32) -> Option<Self>;
    fn count(self) -> u32;
}

impl Counted for NonZeroU8 {
    fn from_count(n: u32) -> Option<Self> {
        u8::try_from(n).ok().and_then(Self::new)
    }

    fn count(self) -> u32 {
        self.get().into()
    }
}

impl Counted for NonZeroU32 {
    fn from_count(n: u32) -> Option<Self> {
        Self::new(n)
    }

    fn count(self) -> u32 {
        self.get()
    }
}

/// A share from 0 to 1.
pub(super) struct Share;

impl Kind for Share {
    type Value = f64;

    fn parse(&self, node: &Node) -> Result<f64, String> {
        let share = match node {
            Node::Float(share) => *share,
            Node::Int(0) => 0.0,
            Node::Int(1) => 1.0,
            Node::Int(n) => return Err(format!("{n} is out of bounds: {}", self.hint())),
            Node::Null | Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Map(_) | Node::Tagged => {
                return Err(wrong_type("a number from 0 to 1", node));
            }
        };
        if (0.0..=1.0).contains(&share) { Ok(share.abs()) } else { Err(format!("{share} is out of bounds: {}", self.hint())) }
    }

    fn show(&self, value: &f64) -> Node {
        Node::Float(*value)
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "minimum": 0, "maximum": 1})
    }

    fn hint(&self) -> String {
        "0 to 1".to_owned()
    }
}

/// One word of a closed set.
pub(super) struct Word<T: 'static>(pub(super) &'static [T]);

impl<T: FromStr + Display + Clone> Kind for Word<T> {
    type Value = T;

    fn parse(&self, node: &Node) -> Result<T, String> {
        let Node::Text(text) = node else { return Err(wrong_type(&format!("one of {}", self.hint()), node)) };
        if let Ok(word) = text.parse() {
            return Ok(word);
        }
        let words: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        let near = super::near(text, words.iter().map(String::as_str)).map(|w| format!("; did you mean {w}?"));
        Err(format!("{} is not known{}; known: {}", quoted(text), near.unwrap_or_default(), words.join(", ")))
    }

    fn show(&self, value: &T) -> Node {
        Node::text(value.to_string())
    }

    fn schema(&self) -> Json {
        json!({"enum": self.0.iter().map(ToString::to_string).collect::<Vec<_>>()})
    }

    fn hint(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
    }
}

/// Some words of a closed set, each once, as a list.
pub(super) struct Words<T: 'static>(pub(super) &'static [T]);

impl<T: FromStr + Display + Clone + PartialEq> Kind for Words<T> {
    type Value = Vec<T>;

    fn parse(&self, node: &Node) -> Result<Vec<T>, String> {
        let Node::List(nodes) = node else { return Err(wrong_type("a list such as [client_reconnect]", node)) };
        let mut words: Vec<T> = Vec::new();
        for node in nodes {
            let word = Word(self.0).parse(node)?;
            if words.contains(&word) {
                return Err(format!("names {word} twice"));
            }
            words.push(word);
        }
        Ok(words)
    }

    fn show(&self, value: &Vec<T>) -> Node {
        Node::List(value.iter().map(|word| Node::text(word.to_string())).collect())
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "uniqueItems": true, "items": Word(self.0).schema()})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// `true` or `false`.
pub(super) struct Switch;

impl Kind for Switch {
    type Value = bool;

    fn parse(&self, node: &Node) -> Result<bool, String> {
        if let Node::Bool(on) = node { Ok(*on) } else { Err(wrong_type("true or false", node)) }
    }

    fn show(&self, value: &bool) -> Node {
        Node::Bool(*value)
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// A setting that may be `null`: unset.
pub(super) struct Nullable<K>(pub(super) K);

impl<K: Kind> Kind for Nullable<K> {
    type Value = Option<K::Value>;

    fn parse(&self, node: &Node) -> Result<Option<K::Value>, String> {
        if *node == Node::Null { Ok(None) } else { self.0.parse(node).map(Some) }
    }

    fn show(&self, value: &Option<K::Value>) -> Node {
        value.as_ref().map_or(Node::Null, |v| self.0.show(v))
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [self.0.schema(), {"type": "null"}]})
    }

    fn hint(&self) -> String {
        self.0.hint()
    }
}

/// A setting without a default. `None` only until it is read.
pub(super) struct Required<K>(pub(super) K);

impl<K: Kind> Kind for Required<K> {
    type Value = Option<K::Value>;

    fn parse(&self, node: &Node) -> Result<Option<K::Value>, String> {
        self.0.parse(node).map(Some)
    }

    fn show(&self, value: &Option<K::Value>) -> Node {
        value.as_ref().map_or(Node::Null, |v| self.0.show(v))
    }

    fn schema(&self) -> Json {
        self.0.schema()
    }

    fn hint(&self) -> String {
        self.0.hint()
    }

    fn required(&self) -> bool {
        true
    }
}
