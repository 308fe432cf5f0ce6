//! The class matrix: which role may do which action (playbook, *Class matrix*). Nothing ever lifts it.

use std::collections::{BTreeMap, BTreeSet};

use super::ladder::Rung;

/// The daemon's own role. No person or program that asks through the API may have it.
pub const OWN_ROLE: &str = "sidecar";

/// What each role may do. A role that is not listed may do nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix(BTreeMap<String, BTreeSet<Rung>>);

impl Matrix {
    /// A matrix of these roles. Of a role that is named twice only what both entries permit is permitted.
    #[must_use]
    pub fn new(roles: impl IntoIterator<Item = (String, BTreeSet<Rung>)>) -> Self {
        let mut matrix: BTreeMap<String, BTreeSet<Rung>> = BTreeMap::new();
        for (role, permitted) in roles {
            let both = matrix.get(&role).map_or_else(|| permitted.clone(), |known| known & &permitted);
            matrix.insert(role, both);
        }
        Self(matrix)
    }

    /// Whether the role may do this. Unknown roles may do nothing.
    #[must_use]
    pub fn permits(&self, role: &str, action: Rung) -> bool {
        self.0.get(role).is_some_and(|permitted| permitted.contains(&action))
    }

    /// Whether the role is listed at all.
    #[must_use]
    pub fn knows(&self, role: &str) -> bool {
        self.0.contains_key(role)
    }

    /// Every role with what it may do, by name.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &BTreeSet<Rung>)> {
        self.0.iter().map(|(role, permitted)| (role.as_str(), permitted))
    }
}

impl Default for Matrix {
    fn default() -> Self {
        let ranks = |permitted: fn(u8) -> bool| Rung::ALL.iter().copied().filter(|r| permitted(r.rank())).collect();
        Self::new([
            ("viewer".to_owned(), BTreeSet::new()),
            // Without configuration_reload: a new configuration is a person's decision.
            (OWN_ROLE.to_owned(), ranks(|rank| matches!(rank, 0..=2 | 4 | 5))),
            ("operator".to_owned(), ranks(|rank| rank <= 7)),
            ("admin".to_owned(), ranks(|_| true)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_matrix_is_the_playbooks() {
        let rows = [
            ("viewer", "-----------"),
            ("sidecar", "+++-++-----"),
            ("operator", "++++++++---"),
            ("admin", "+++++++++++"),
            ("Admin", "-----------"),
            ("", "-----------"),
        ];
        let matrix = Matrix::default();
        for (role, row) in rows {
            let found: String = Rung::ALL.iter().map(|r| if matrix.permits(role, *r) { '+' } else { '-' }).collect();
            assert_eq!(found, row, "{role}");
        }
        assert!(matrix.knows("viewer") && !matrix.knows("root"));
    }

    #[test]
    fn of_two_rows_for_one_role_the_stricter_wins() {
        let row = |rungs: &[Rung]| ("a".to_owned(), rungs.iter().copied().collect());
        let matrix = Matrix::new([row(&[Rung::HostRestart, Rung::ClientReconnect]), row(&[Rung::ClientReconnect])]);
        assert!(matrix.permits("a", Rung::ClientReconnect) && !matrix.permits("a", Rung::HostRestart));
    }
}
