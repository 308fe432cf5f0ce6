//! The kinds of value that name a place: URLs, addresses, names, paths.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use reqwest::Url;
use serde_json::{Value as Json, json};

use super::secret::SecretFile;
use super::value::{Kind, quoted, wrong_type};
use super::yaml::Node;

/// An http or https URL whose path ends in `/`, so that `join` keeps a proxy's base path.
pub(super) struct HttpUrl;

impl HttpUrl {
    /// Reads the URL of a file or a flag. The text is never repeated: it may hold a password.
    pub(super) fn parse_text(text: &str) -> Result<Url, String> {
        let scheme = text.get(..8).unwrap_or(text).to_ascii_lowercase();
        if !scheme.starts_with("http://") && !scheme.starts_with("https://") {
            return Err("must begin with http:// or https://".to_owned());
        }
        if text.len() > 2048 {
            return Err("is longer than 2048 bytes".to_owned());
        }
        if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err("holds a space, a backslash or a control character".to_owned());
        }
        let mut url = Url::parse(text).map_err(|e| format!("is not a URL: {e}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not hold a user name or password; use hangar.api_key_file".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must end with its path, without ? or #".to_owned());
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err("has no host".to_owned());
        }
        if url.port() == Some(0) {
            return Err("port 0 cannot be reached".to_owned());
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(url)
    }
}

impl Kind for HttpUrl {
    type Value = Url;

    fn parse(&self, node: &Node) -> Result<Url, String> {
        let Node::Text(text) = node else { return Err(wrong_type("a URL", node)) };
        Self::parse_text(text)
    }

    fn show(&self, value: &Url) -> Node {
        Node::text(value.as_str())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[^\\s?#@]+$", "maxLength": 2048})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// Several of them, each once.
pub(super) struct HttpUrls {
    pub(super) max: usize,
}

impl Kind for HttpUrls {
    type Value = Vec<Url>;

    fn parse(&self, node: &Node) -> Result<Vec<Url>, String> {
        let Node::List(nodes) = node else { return Err(wrong_type("a list such as [http://hangar-1:8000]", node)) };
        if nodes.len() > self.max {
            return Err(format!("holds {} URLs; at most {}", nodes.len(), self.max));
        }
        let mut urls: Vec<Url> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let url = HttpUrl.parse(node).map_err(|text| format!("entry {i} {text}"))?;
            if urls.contains(&url) {
                return Err(format!("entry {i} is named twice"));
            }
            urls.push(url);
        }
        Ok(urls)
    }

    fn show(&self, value: &Vec<Url>) -> Node {
        Node::List(value.iter().map(|url| HttpUrl.show(url)).collect())
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "uniqueItems": true, "maxItems": self.max, "items": HttpUrl.schema()})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// An http or https URL that is used as it stands.
pub(super) struct HookUrl;

impl Kind for HookUrl {
    type Value = Url;

    fn parse(&self, node: &Node) -> Result<Url, String> {
        let Node::Text(text) = node else { return Err(wrong_type("a URL", node)) };
        HttpUrl::parse_text(text)?;
        Url::parse(text).map_err(|e| format!("is not a URL: {e}"))
    }

    fn show(&self, value: &Url) -> Node {
        HttpUrl.show(value)
    }

    fn schema(&self) -> Json {
        HttpUrl.schema()
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// An address to listen on: IP (or `localhost`) and port.
pub(super) struct Listen;

impl Listen {
    pub(super) fn parse_text(text: &str) -> Result<SocketAddr, String> {
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        match text.rsplit_once(':') {
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                let port = port.parse().map_err(|_| "has no valid port".to_owned())?;
                Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
            }
            Some(("", port)) if port.parse::<u16>().is_ok() => Err(format!("{} has no host; write 127.0.0.1:{port}", quoted(text))),
            Some(_) | None => Err(format!("{} is not an IP address and port such as 127.0.0.1:9923 or [::1]:9923", quoted(text))),
        }
    }
}

impl Kind for Listen {
    type Value = SocketAddr;

    fn parse(&self, node: &Node) -> Result<SocketAddr, String> {
        let Node::Text(text) = node else { return Err(wrong_type("an address such as \"127.0.0.1:9923\"", node)) };
        Self::parse_text(text)
    }

    fn show(&self, value: &SocketAddr) -> Node {
        Node::text(value.to_string())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^(\\[[0-9A-Fa-f:.%]+\\]|[0-9.]+|localhost):[0-9]{1,5}$"})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// A short name that may stand in a metric label: printable ASCII, no spaces.
pub(super) struct Name;

impl Name {
    pub(super) fn parse_text(text: &str) -> Result<String, String> {
        if text.is_empty() || text.len() > 200 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("{} is not 1 to 200 printable ASCII characters without spaces", quoted(text)));
        }
        Ok(text.to_owned())
    }
}

impl Kind for Name {
    type Value = String;

    fn parse(&self, node: &Node) -> Result<String, String> {
        let Node::Text(text) = node else { return Err(wrong_type("text", node)) };
        Self::parse_text(text)
    }

    fn show(&self, value: &String) -> Node {
        Node::text(value.as_str())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^[!-~]{1,200}$"})
    }

    fn hint(&self) -> String {
        "printable ASCII, no spaces".to_owned()
    }
}

/// Label matchers of PromQL as they stand between the braces.
pub(super) struct Selector;

impl Kind for Selector {
    type Value = String;

    fn parse(&self, node: &Node) -> Result<String, String> {
        let Node::Text(text) = node else { return Err(wrong_type("label matchers such as job=\"hangar\"", node)) };
        let one = |text: &mut &str| -> Option<()> {
            let name = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|n| *n > 0)?;
            let rest = text.get(name..)?.trim_start();
            let rest = ["=~", "!~", "!=", "="].iter().find_map(|op| rest.strip_prefix(op))?.trim_start().strip_prefix('"')?;
            let end = rest.find(['"', '\\', '\n']).filter(|end| rest.as_bytes().get(*end) == Some(&b'"'))?;
            *text = rest.get(end + 1..)?.trim_start();
            Some(())
        };
        let mut rest = text.trim();
        while text.len() <= 1000 && one(&mut rest).is_some() {
            match rest.strip_prefix(',') {
                Some(more) => rest = more.trim_start(),
                None if rest.is_empty() => return Ok(text.trim().to_owned()),
                None => break,
            }
        }
        Err(format!("{} is no list of label matchers such as job=\"hangar\",cluster=~\"eu.*\"", quoted(text)))
    }

    fn show(&self, value: &String) -> Node {
        Node::text(value.as_str())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "minLength": 1, "maxLength": 1000})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// A path of a file or directory; relative ones start at the working directory.
pub(super) struct FilePath;

impl FilePath {
    pub(super) fn parse_text(text: &str) -> Result<PathBuf, String> {
        if text.is_empty() {
            return Err("is empty".to_owned());
        }
        if text.len() > 4096 || text.chars().any(|c| c.is_control() || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')) {
            return Err(format!("{} is no path: control characters or more than 4096 bytes", quoted(text)));
        }
        Ok(PathBuf::from(text))
    }
}

impl Kind for FilePath {
    type Value = PathBuf;

    fn parse(&self, node: &Node) -> Result<PathBuf, String> {
        let Node::Text(text) = node else { return Err(wrong_type("a path", node)) };
        Self::parse_text(text)
    }

    fn show(&self, value: &PathBuf) -> Node {
        Node::text(value.to_string_lossy())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "minLength": 1, "maxLength": 4096})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// The path of a file that holds one secret. Only the path is ever shown.
pub(super) struct SecretPath;

impl Kind for SecretPath {
    type Value = SecretFile;

    fn parse(&self, node: &Node) -> Result<SecretFile, String> {
        FilePath.parse(node).map(|path| SecretFile { path })
    }

    fn show(&self, value: &SecretFile) -> Node {
        FilePath.show(&value.path)
    }

    fn schema(&self) -> Json {
        FilePath.schema()
    }

    fn hint(&self) -> String {
        FilePath.hint()
    }
}
