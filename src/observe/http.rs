//! Prometheus and Alertmanager over HTTP: bounded, without redirects, credentials read afresh at each request.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use reqwest::{Certificate, Client, Identity, Url};

use crate::config::{HttpAccess, SecretFile};
use crate::hangar::fault::chain;

/// Builds a client; the certificates are read now.
///
/// # Errors
/// A file that cannot be read or holds no certificate or key; in one line.
pub fn client(url: &Url, timeout: Duration, access: &HttpAccess) -> Result<Client, String> {
    let mut http = Client::builder()
        .user_agent(concat!("hangar-medic/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(timeout);
    if url.scheme() == "http" {
        // A minimal container may hold no CA certificates, which plain HTTP does not need.
        http = http.tls_certs_only([]);
    } else if let Some(path) = &access.ca_file {
        let certificates = Certificate::from_pem_bundle(&read(path)?).map_err(|e| format!("{}: {}", path.display(), chain(&e)))?;
        http = http.tls_certs_only(certificates);
    }
    if let (Some(certificate), Some(key)) = (&access.cert_file, &access.key_file) {
        let mut pem = read(certificate)?;
        pem.push(b'\n');
        pem.extend(read(key)?);
        http = http.identity(Identity::from_pem(&pem).map_err(|e| format!("{}: {}", certificate.display(), chain(&e)))?);
    }
    http.build().map_err(|e| chain(&e))
}

/// The `Authorization` of the next request; `None` where none is configured.
///
/// # Errors
/// A secret file that gives no secret; in one line, without the secret.
pub fn authorization(access: &HttpAccess) -> Result<Option<HeaderValue>, String> {
    let secret = |file: &SecretFile| file.read().map_err(|e| e.explained());
    let text = match (&access.bearer_token_file, &access.username, &access.password_file) {
        (Some(file), ..) => format!("Bearer {}", secret(file)?.expose()),
        (None, Some(user), Some(file)) => {
            format!("Basic {}", STANDARD.encode(format!("{user}:{}", secret(file)?.expose())))
        }
        (None, ..) => return Ok(None),
    };
    let mut value = HeaderValue::from_str(&text).map_err(|_| "the secret holds a character that no HTTP header takes".to_owned())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The whole body, at most `max` bytes.
///
/// # Errors
/// It is larger, or it was cut off; in one line.
pub async fn body(mut response: reqwest::Response, max: u64) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| chain(&e.without_url()))? {
        if (body.len() + chunk.len()) as u64 > max {
            return Err(format!("larger than {max} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
