//! Whom to tell about which server: the operator's list, by name or pattern.

/// Who owns which servers; the first entry that fits counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owners(Vec<(String, String)>);

impl Owners {
    /// Of (pattern, owner) in the order that they are asked. In a pattern `*` stands for any text, also none.
    #[must_use]
    pub const fn new(entries: Vec<(String, String)>) -> Self {
        Self(entries)
    }

    /// The owner of a server, if any entry fits.
    #[must_use]
    pub fn of(&self, server: &str) -> Option<&str> {
        self.0.iter().find(|(pattern, _)| fits(pattern, server)).map(|(_, owner)| owner.as_str())
    }

    /// Every entry, (pattern, owner).
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(pattern, owner)| (pattern.as_str(), owner.as_str()))
    }
}

/// Linear in the text for each `*`: the text between two stars is taken where it comes first.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').map_or((None, rest), |(middle, tail)| (Some(middle), tail));
    for part in middle.into_iter().flat_map(|m| m.split('*')) {
        let Some(at) = text.find(part) else { return false };
        text = text.get(at + part.len()..).unwrap_or_default();
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_fits_names_the_owner() {
        let entries = [("pay-api", "ann"), ("pay-*", "payments"), ("*-eu-*x", "eu"), ("*", "platform")];
        let owners = Owners::new(entries.map(|(p, o)| (p.to_owned(), o.to_owned())).to_vec());
        let of = ["pay-api", "pay-", "api-eu-1x", "api-eu-1", "a-eu-x", "-eu-eu-xx", "", "pay"].map(|s| owners.of(s).unwrap());
        assert_eq!(of, ["ann", "payments", "eu", "platform", "eu", "eu", "platform", "platform"]);
        let fitting = |pattern: &str| ["", "a", "ab", "aba"].map(|text| fits(pattern, text));
        assert_eq!(fitting("a*a"), [false, false, false, true]);
        assert_eq!(fitting("a**"), [false, true, true, true]);
        assert_eq!(fitting("*b*"), [false, false, true, true]);
        assert_eq!(Owners::default().of("api"), None);
    }
}
