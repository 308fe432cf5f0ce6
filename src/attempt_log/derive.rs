//! What the index knows of a record, read off its stored text.

use serde::Deserialize;

/// Columns by which a record is found. Also read from kinds that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub(super) struct Derived {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub incident_id: Option<String>,
    #[serde(default)]
    pub mcp_server: Option<String>,
    #[serde(default)]
    attempt_id: Option<String>,
    /// The rest are no columns: `verify` needs them to know what must stand.
    #[serde(default)]
    pub grant_id: String,
    #[serde(default)]
    pub request_id: String,
    #[serde(default)]
    pub acts: bool,
}

impl Derived {
    /// Never fails: a text that cannot be read has no columns and shows when the record itself is read.
    pub(super) fn of(body: &str) -> Self {
        let mut derived: Self = serde_json::from_str(body).unwrap_or_default();
        if derived.incident_id.is_none() {
            derived.incident_id = derived.attempt_id.as_deref().and_then(incident_of);
        }
        derived
    }
}

/// The incident that an attempt id belongs to (`policy::attempt_id`: `<incident_id>.<n>`).
fn incident_of(attempt_id: &str) -> Option<String> {
    attempt_id.rsplit_once('.').map(|(incident, _)| incident.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_of_an_attempt_is_found_by_its_incident() {
        let incident = |body: &str| Derived::of(body).incident_id;
        assert_eq!(incident(r#"{"kind":"attempt_settled","attempt_id":"api.17.2"}"#).as_deref(), Some("api.17"));
        assert_eq!(incident(r#"{"kind":"attempt_opened","attempt_id":"api.17.2","incident_id":"api.17"}"#).as_deref(), Some("api.17"));
        assert_eq!(incident(r#"{"kind":"from_the_future","incident_id":"api.17","x":[1]}"#).as_deref(), Some("api.17"));
        assert_eq!(incident(r#"{"kind":"hold_ordered","mcp_server":"api"}"#), None);
        assert_eq!(Derived::of("not json"), Derived::default());
    }
}
