//! How another service lets us in: the same keys wherever one is asked over HTTP. And when Hangar's events are heard.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::SecretFile;
use super::place::{FilePath, Name, SecretPath};
use super::settings::Walk;
use super::value::Nullable;
use crate::policy::UnknownWord;

/// Credentials and TLS of one service. Files only; secrets are read again at each use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpAccess {
    pub bearer_token_file: Option<SecretFile>,
    pub username: Option<String>,
    pub password_file: Option<SecretFile>,
    /// PEM, instead of the system's certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// PEM, with `key_file`: our own certificate.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl HttpAccess {
    pub(super) fn walk<W: Walk>(w: &mut W, access: &mut Self) {
        Self::walk_credentials(w, access);
        let doc = "PEM file of certificate authorities; null: the system's.";
        w.setting("ca_file", &Nullable(FilePath), &mut access.ca_file, doc);
        let doc = "PEM file of our own certificate, with key_file, where the service asks for one.";
        w.setting("cert_file", &Nullable(FilePath), &mut access.cert_file, doc);
        w.setting("key_file", &Nullable(FilePath), &mut access.key_file, "PEM file of its key.");
    }

    /// The credentials alone.
    pub(super) fn walk_credentials<W: Walk>(w: &mut W, access: &mut Self) {
        let doc = "File with a bearer token; read again at each request. Not together with username.";
        w.setting("bearer_token_file", &Nullable(SecretPath), &mut access.bearer_token_file, doc);
        w.setting("username", &Nullable(Name), &mut access.username, "Basic authentication, with password_file.");
        w.setting("password_file", &Nullable(SecretPath), &mut access.password_file, "File with the password of username.");
    }

    /// What is wrong with it, as key and text.
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let mut wrong = |is: bool, key: &'static str, text: &str| {
            if is {
                faults.push((key, text.to_owned()));
            }
        };
        wrong(self.bearer_token_file.is_some() && self.username.is_some(), "bearer_token_file", "not together with username");
        wrong(self.username.is_some() && self.password_file.is_none(), "password_file", "missing; username needs it");
        wrong(self.username.is_none() && self.password_file.is_some(), "username", "missing; password_file needs it");
        wrong(self.cert_file.is_some() != self.key_file.is_some(), "cert_file", "cert_file and key_file need each other");
        for (key, secret) in [("bearer_token_file", &self.bearer_token_file), ("password_file", &self.password_file)] {
            if let Some(Err(error)) = secret.as_ref().map(SecretFile::read) {
                faults.push((key, error.explained()));
            }
        }
        for (key, path) in [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)] {
            if let Some(Err(error)) = path.as_ref().map(std::fs::File::open) {
                faults.push((key, format!("cannot read the file: {error}")));
            }
        }
        faults
    }
}

/// The files of TLS on our own address, PEM; read again when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebTls {
    /// Our certificate, then those that lead to its authority.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// Authorities of the certificates that clients may show.
    pub client_ca_file: Option<PathBuf>,
}

/// The same as it was written.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_field_names, reason = "the keys of the file")]
pub(super) struct RawTls {
    pub(super) cert_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) client_ca_file: Option<PathBuf>,
}

impl From<Option<&WebTls>> for RawTls {
    fn from(tls: Option<&WebTls>) -> Self {
        Self {
            cert_file: tls.map(|tls| tls.cert_file.clone()),
            key_file: tls.map(|tls| tls.key_file.clone()),
            client_ca_file: tls.and_then(|tls| tls.client_ca_file.clone()),
        }
    }
}

impl RawTls {
    pub(super) fn walk<W: Walk>(w: &mut W, tls: &mut Self) {
        let doc = "PEM file of our certificate, then those that lead to its authority. null: plain HTTP.";
        w.setting("cert_file", &Nullable(FilePath), &mut tls.cert_file, doc);
        w.setting("key_file", &Nullable(FilePath), &mut tls.key_file, "PEM file of its key.");
        let doc = "PEM file of authorities: a client may show a certificate of theirs instead of a token. null: none is asked for.";
        w.setting("client_ca_file", &Nullable(FilePath), &mut tls.client_ca_file, doc);
    }

    /// The valid files, or what is wrong, as key and text.
    pub(super) fn judged(self) -> Result<Option<WebTls>, (&'static str, String)> {
        let tls = match (self.cert_file, self.key_file, self.client_ca_file) {
            (Some(cert_file), Some(key_file), client_ca_file) => WebTls { cert_file, key_file, client_ca_file },
            (None, None, None) => return Ok(None),
            (None, None, Some(_)) => return Err(("client_ca_file", "needs cert_file and key_file".to_owned())),
            (Some(_), None, _) | (None, Some(_), _) => return Err(("cert_file", "cert_file and key_file need each other".to_owned())),
        };
        match crate::server::Tls::load(&tls) {
            Ok(_) => Ok(Some(tls)),
            Err(error) => Err(("cert_file", crate::hangar::fault::chain(&error))),
        }
    }
}

/// When Hangar's event stream is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Events {
    /// Only where no log is read.
    #[default]
    Auto,
    On,
    Off,
}

impl Events {
    /// Every word.
    pub const ALL: &'static [Self] = &[Self::Auto, Self::On, Self::Off];

    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Events {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = Self::ALL.iter().copied().find(|e| e.as_str() == word);
        found.ok_or_else(|| UnknownWord::new("choice", word, Self::ALL.iter().map(|e| e.as_str())))
    }
}
