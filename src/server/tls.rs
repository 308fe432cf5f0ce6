//! TLS on our own address: certificates that are read again when their files change, and clients that show one.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::WebTls;
use crate::hangar::fault::chain;
use crate::metrics::Metrics;

/// How often the files are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Bytes of one file at most: some hundred certificates.
const FILE_MAX: u64 = 1024 * 1024;

/// Why the files give no TLS, with the file it is about.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{} cannot be read", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {what}", .path.display())]
    Content { path: PathBuf, what: String },
    #[error("{} and {} do not go together", .certificate.display(), .key.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: tokio_rustls::rustls::Error },
    #[error("TLS cannot be set up")]
    Setup(#[source] tokio_rustls::rustls::Error),
}

/// Device, inode, size and change time of each file.
type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

/// What the listener speaks TLS with.
pub struct Tls {
    files: WebTls,
    acceptor: RwLock<TlsAcceptor>,
    stamp: Mutex<Stamp>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them is missing, too large, no PEM, or they do not go together.
    pub fn load(files: &WebTls) -> Result<Self, TlsError> {
        let stamp = stamp(files);
        let acceptor = RwLock::new(read(files)?);
        Ok(Self { files: files.clone(), acceptor, stamp: Mutex::new(stamp) })
    }

    /// What the next connection is accepted with.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they changed; what is no good is said, and what was there before stays in use.
    pub(super) fn refresh(&self, metrics: &Metrics) {
        let now = stamp(&self.files);
        let mut before = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == now {
            return;
        }
        match read(&self.files) {
            Ok(acceptor) => {
                *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
                tracing::info!(event = "tls_reloaded", "the certificate files changed and are in use");
                metrics.tls_loaded(true);
            }
            Err(error) => {
                tracing::error!(
                    event = "tls_refused",
                    error = chain(&error),
                    "the certificate files changed and are no good: the old ones stay in use"
                );
                metrics.tls_loaded(false);
            }
        }
        *before = now;
    }
}

fn paths(files: &WebTls) -> impl Iterator<Item = &Path> {
    [Some(&files.cert_file), Some(&files.key_file), files.client_ca_file.as_ref()].into_iter().flatten().map(PathBuf::as_path)
}

fn stamp(files: &WebTls) -> Stamp {
    let one = |path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()));
    paths(files).map(one).collect()
}

fn read(files: &WebTls) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&files.cert_file)?;
    let pem = content(&files.key_file)?;
    let no_key = |error: tokio_rustls::rustls::pki_types::pem::Error| {
        // Nothing of the file is repeated: it may be a key in another form.
        let what = if matches!(error, tokio_rustls::rustls::pki_types::pem::Error::NoItemsFound) { "no private key" } else { "no PEM" };
        TlsError::Content { path: files.key_file.clone(), what: what.to_owned() }
    };
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(no_key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12]).map_err(TlsError::Setup)?;
    let builder = match &files.client_ca_file {
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
        None => builder.with_no_client_auth(),
    };
    let pair = |source| TlsError::Pair { certificate: files.cert_file.clone(), key: files.key_file.clone(), source };
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A client may show no certificate; one that it shows must be of these authorities and valid now.
fn verifier(path: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let content = |what: String| TlsError::Content { path: path.to_owned(), what };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| content(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated().build();
    verifier.map_err(|error| content(error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |what: &str| TlsError::Content { path: path.to_owned(), what: what.to_owned() };
    let pem = content(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|_| wrong("no PEM"))?;
    if all.is_empty() { Err(wrong("no certificate")) } else { Ok(all) }
}

fn content(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    // Asked before opening: opening a named pipe would wait for its writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(TlsError::Content { path: path.to_owned(), what: "not a regular file".to_owned() });
    }
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(failed)?.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(TlsError::Content { path: path.to_owned(), what: format!("larger than {FILE_MAX} bytes") });
    }
    Ok(bytes)
}

/// Who is at the other end of a connection, as its verified certificate says: common names and alternative names. Empty
/// without one.
#[derive(Debug, Clone, Default)]
pub(super) struct Peer(Arc<[String]>);

impl Peer {
    /// Of the chain that a client showed, its own certificate first. It is verified already.
    pub(super) fn of(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(own) = chain.and_then(<[_]>::first) else { return Self::default() };
        let Ok((_, certificate)) = X509Certificate::from_der(own) else { return Self::default() };
        let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => Some(*name),
            GeneralName::OtherName(..)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::IPAddress(_)
            | GeneralName::RegisteredID(_)
            | GeneralName::Invalid(..) => None,
        });
        Self(common.chain(alternative).map(ToOwned::to_owned).collect())
    }

    /// Whether the certificate bears this very name; there are no wildcards.
    pub(super) fn is(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == name)
    }

    /// Whether a certificate was shown.
    pub(super) fn is_known(&self) -> bool {
        !self.0.is_empty()
    }
}
