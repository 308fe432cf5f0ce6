//! A PostgreSQL server as the place of the attempt log.

use reqwest::Url;
use serde_json::{Value as Json, json};

use super::SecretFile;
use super::place::SecretPath;
use super::settings::Walk;
use super::value::{Kind, Nullable, wrong_type};
use super::yaml::Node;

/// What an address may say besides user, host, port and database. Whatever else is there may be a misspelt secret.
const PARAMETERS: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "host"];

/// Where the server is. Secrets are in files only, and are read again at each connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Postgres {
    /// Without a password.
    pub url: Option<String>,
    /// The whole address, with or without a password, instead of `url`.
    pub url_file: Option<SecretFile>,
    pub password_file: Option<SecretFile>,
}

/// Why there is no address now. Holds neither the address nor a password.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error("storage.postgres.url_file: {0}")]
    UrlFile(String),
    #[error("storage.postgres.password_file: {0}")]
    PasswordFile(String),
    #[error("storage.postgres: {0}")]
    TlsFile(String),
    #[error("storage.postgres is not set")]
    Unset,
}

impl Postgres {
    pub(super) fn walk<W: Walk>(w: &mut W, postgres: &mut Self) {
        let doc = "postgres://user@host:5432/database?sslmode=verify-full&sslrootcert=/etc/ssl/ca.pem; never with a password. The \
                   tables are in the schema hangar_medic, so it may be Hangar's own database. null: SQLite in storage.path.";
        w.setting("url", &Nullable(Address), &mut postgres.url, doc);
        let doc = "File with the whole address instead of url, password included; read again at each connection.";
        w.setting("url_file", &Nullable(SecretPath), &mut postgres.url_file, doc);
        let doc = "File with the password for url; read again at each connection.";
        w.setting("password_file", &Nullable(SecretPath), &mut postgres.password_file, doc);
    }

    /// Whether the attempt log is on a server.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.url.is_some() || self.url_file.is_some()
    }

    /// The address and, where it is apart, the password. Reads the files.
    pub fn address(&self) -> Result<(Url, Option<super::Secret>), PostgresError> {
        let address = match (&self.url, &self.url_file) {
            (Some(url), _) => judge(url, false).map_err(|_| PostgresError::Unset)?,
            (None, Some(file)) => {
                let text = file.read().map_err(|e| PostgresError::UrlFile(e.explained()))?;
                judge(text.expose(), true).map_err(PostgresError::UrlFile)?
            }
            (None, None) => return Err(PostgresError::Unset),
        };
        // Whoever connects later tells of no name.
        let files = address.query_pairs().filter(|(key, _)| matches!(&**key, "sslrootcert" | "sslcert" | "sslkey"));
        for (key, path) in files {
            std::fs::File::open(&*path).map_err(|e| PostgresError::TlsFile(format!("{key}: {path} cannot be read: {e}")))?;
        }
        let password = self.password_file.as_ref().map(SecretFile::read).transpose();
        Ok((address, password.map_err(|e| PostgresError::PasswordFile(e.explained()))?))
    }

    /// What is wrong with it, as key and text.
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.url.is_some() && self.url_file.is_some() {
            faults.push(("url_file", "not together with url".to_owned()));
        }
        if self.url.is_none() && self.password_file.is_some() {
            faults.push(("password_file", "needs url; an address in url_file holds its own password".to_owned()));
        }
        match self.address() {
            Ok(_) | Err(PostgresError::Unset) => {}
            Err(PostgresError::UrlFile(text)) => faults.push(("url_file", text)),
            Err(PostgresError::PasswordFile(text)) => faults.push(("password_file", text)),
            Err(PostgresError::TlsFile(text)) => faults.push((if self.url.is_some() { "url" } else { "url_file" }, text)),
        }
        faults
    }

    /// Whether somebody on the way could read what is sent, or answer in the server's place.
    pub(super) fn open_to_others(&self) -> bool {
        let Ok((url, _)) = self.address() else { return false };
        let says = |key: &str| url.query_pairs().find(|(k, _)| k == key).map(|(_, value)| value.into_owned());
        let host = says("host").or_else(|| url.host_str().map(str::to_owned)).unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        let local = host == "localhost" || host.starts_with('/') || host.to_ascii_lowercase().starts_with("%2f");
        let local = local || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        !local && !matches!(says("sslmode").as_deref(), Some("verify-full" | "verify-ca"))
    }
}

/// Reads an address. The text is never repeated: it may hold a password.
fn judge(text: &str, with_password: bool) -> Result<Url, String> {
    if text.len() > 2048 {
        return Err("is longer than 2048 bytes".to_owned());
    }
    let url = Url::parse(text).map_err(|e| format!("is not a URL: {e}"))?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err("must begin with postgres://".to_owned());
    }
    if url.password().is_some() && !with_password {
        return Err("must not hold a password; use password_file, or url_file for the whole address".to_owned());
    }
    if url.query_pairs().any(|(key, _)| !PARAMETERS.contains(&&*key)) {
        return Err(format!("holds a parameter that is none of {}", PARAMETERS.join(", ")));
    }
    if url.host_str().is_none_or(str::is_empty) && !url.query_pairs().any(|(key, _)| key == "host") {
        return Err("has no host".to_owned());
    }
    if url.path().trim_matches('/').is_empty() {
        return Err("names no database".to_owned());
    }
    Ok(url)
}

/// The address of a server, without a password.
struct Address;

impl Kind for Address {
    type Value = String;

    fn parse(&self, node: &Node) -> Result<String, String> {
        let Node::Text(text) = node else { return Err(wrong_type("an address such as postgres://medic@db:5432/hangar", node)) };
        judge(text, false).map(|_| text.clone())
    }

    fn show(&self, value: &String) -> Node {
        Node::text(value.as_str())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^postgres(ql)?://", "maxLength": 2048})
    }

    fn hint(&self) -> String {
        String::new()
    }
}
