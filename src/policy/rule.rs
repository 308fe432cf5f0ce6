//! Policy of some servers by name or pattern, instead of the rest: the first rule that matches a server counts, alone.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use super::brake::Braked;
use super::hold::Hold;
use super::ladder::Rung;
use super::limits::{Mode, Policy, RungLimits};

/// Names of servers: letters, digits, `-` and `_` as they are, `*` for any run of them, `?` for any one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

/// Longest pattern; a server id has at most 64 characters.
const PATTERN_MAX: usize = 128;

impl Pattern {
    /// Every server.
    #[must_use]
    pub fn all() -> Self {
        Self("*".to_owned())
    }

    /// Whether it names this server.
    #[must_use]
    pub fn matches(&self, mcp_server: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), mcp_server.as_bytes());
        let (mut p, mut n) = (0, 0);
        // The last star, and how much of the name it has taken: only that one is ever tried again.
        let mut star = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p + 1, n));
                    p += 1;
                }
                Some(c) if *c == b'?' || Some(c) == name.get(n) => {
                    p += 1;
                    n += 1;
                }
                Some(_) | None => {
                    let Some((after, taken)) = star else { return false };
                    star = Some((after, taken + 1));
                    p = after;
                    n = taken + 1;
                }
            }
        }
        pattern.iter().skip(p).all(|c| *c == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'*' | b'?');
        if text.is_empty() || text.len() > PATTERN_MAX || !text.bytes().all(fits) {
            return Err("is no name or pattern of server ids: letters, digits, - and _, with * and ?");
        }
        Ok(Self(text.to_owned()))
    }
}

/// What applies to the servers that it names. What it leaves out is as for every server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRule {
    pub servers: Pattern,
    /// False: the medic leaves them alone.
    pub enabled: bool,
    pub mode: Option<Mode>,
    /// Of the enabled rungs only these.
    pub rungs: Option<Vec<Rung>>,
    /// Starts of ours within `budgets.starts_window`.
    pub starts_per_server: Option<NonZeroU32>,
}

impl Policy {
    /// The rule for this server, if one names it.
    #[must_use]
    pub fn rule(&self, mcp_server: &str) -> Option<&ServerRule> {
        self.servers.iter().find(|rule| rule.servers.matches(mcp_server))
    }

    /// The mode for this server. No rule lifts `observe` of the whole.
    #[must_use]
    pub fn mode_of(&self, mcp_server: &str) -> Mode {
        match self.mode {
            Mode::Observe => Mode::Observe,
            Mode::Act => self.rule(mcp_server).and_then(|rule| rule.mode).unwrap_or(Mode::Act),
        }
    }

    /// The enabled rungs of this server, in rank order.
    pub fn rungs_of<'a>(&'a self, mcp_server: &str) -> impl Iterator<Item = &'a RungLimits> + use<'a> {
        let only = self.rule(mcp_server).and_then(|rule| rule.rungs.as_ref());
        self.rungs.iter().filter(move |limits| only.is_none_or(|only| only.contains(&limits.action)))
    }

    /// The limits of a rung at this server, if it is enabled there.
    #[must_use]
    pub fn rung_of(&self, mcp_server: &str, rung: Rung) -> Option<&RungLimits> {
        self.rungs_of(mcp_server).find(|limits| limits.action == rung)
    }

    /// Starts of ours of this server within the window.
    #[must_use]
    pub fn starts_of(&self, mcp_server: &str) -> NonZeroU32 {
        let own = self.rule(mcp_server).and_then(|rule| rule.starts_per_server);
        own.unwrap_or(self.budgets.starts_per_server)
    }

    /// The hold of a server that the operator has taken out.
    #[must_use]
    pub fn opted_out(&self, mcp_server: &str) -> Option<Braked> {
        let rule = self.rule(mcp_server).filter(|rule| !rule.enabled)?;
        Some(Braked::new(Hold::OptedOut, None, format!("policy.servers leaves it alone (match: {})", rule.servers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_what_it_says_and_nothing_else() {
        let check = |pattern: &str, names: &[&str], others: &[&str]| {
            let pattern: Pattern = pattern.parse().unwrap();
            assert!(names.iter().all(|n| pattern.matches(n)), "{pattern}");
            assert!(!others.iter().any(|n| pattern.matches(n)), "{pattern}");
        };
        check("api", &["api"], &["", "ap", "apis", "Api", "xapi"]);
        check("*", &["", "a", "db-1"], &[]);
        check("db-*", &["db-", "db-1", "db-db-"], &["db", "xdb-1", "DB-1"]);
        check("*-db", &["-db", "a-db", "a-db-db"], &["a-dbx", "db"]);
        check("a*b*c", &["abc", "axbxc", "abcbc", "abbbc"], &["ab", "acb", "abcx"]);
        check("web-?", &["web-1", "web-x"], &["web-", "web-10"]);
        check("**?", &["a", "abc"], &[""]);
        // No pattern takes long over a name.
        check("*a*a*a*a*a*a*a*a*b", &[], &["a".repeat(64).as_str()]);
        for bad in ["", "a b", "a.b", "[ab]", "a/b", "é", "a\n"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_counts_alone_and_none_lifts_observe() {
        let rule = |servers: &str| ServerRule {
            servers: servers.parse().unwrap(),
            enabled: true,
            mode: None,
            rungs: None,
            starts_per_server: None,
        };
        let mut policy = Policy::default();
        let starts = NonZeroU32::new(9);
        policy.servers = vec![
            ServerRule { mode: Some(Mode::Observe), ..rule("db-1") },
            ServerRule { starts_per_server: starts, rungs: Some(vec![Rung::ClientReconnect]), ..rule("db-*") },
            ServerRule { enabled: false, ..rule("legacy") },
        ];
        let of = |id: &str| (policy.mode_of(id), policy.rungs_of(id).count(), policy.starts_of(id).get(), policy.opted_out(id).is_some());
        let all = policy.rungs.len();
        assert_eq!(of("db-1"), (Mode::Observe, all, 4, false));
        assert_eq!(of("db-2"), (Mode::Act, 1, 9, false));
        assert_eq!(of("legacy"), (Mode::Act, all, 4, true));
        assert_eq!(of("api"), (Mode::Act, all, 4, false));
        policy.mode = Mode::Observe;
        policy.servers = vec![ServerRule { mode: Some(Mode::Act), ..rule("*") }];
        assert_eq!(policy.mode_of("api"), Mode::Observe);
    }
}
