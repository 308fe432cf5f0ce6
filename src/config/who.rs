//! Who may do what: the class matrix, and the principals that may ask.

use std::collections::BTreeMap;

use super::raw::{RawOwner, RawPrincipal, RawRole};
use super::validate::{Checks, Doubt};
use super::{Config, Principal, Proof, SecretFile};
use crate::policy::{Matrix, OWN_ROLE, Owners};

/// Why nobody can be known by a certificate.
pub(super) const NO_CLIENT_CA: &str = "needs web.tls.client_ca_file, which says whose certificates are asked for";
/// Shorter tokens can be guessed.
const TOKEN_MIN: usize = 16;

impl Checks {
    /// The matrix; `None` when a row is faulty.
    pub(super) fn matrix(&mut self, raw: Vec<RawRole>) -> Option<Matrix> {
        if raw.is_empty() && self.sound(&["matrix", "matrix.roles"]) {
            self.fault("matrix.roles", "lists no role; leave the key out for the default");
        }
        let mut whole = true;
        let mut first_named: BTreeMap<String, usize> = BTreeMap::new();
        let mut rows = Vec::new();
        for (i, row) in raw.into_iter().enumerate() {
            let entry = format!("matrix.roles[{i}]");
            let (Some(role), Some(permitted)) = (row.role.clone(), row.permitted.clone()) else {
                self.missing(&entry, &[("role", row.role.is_some()), ("permitted", row.permitted.is_some())]);
                whole = false;
                continue;
            };
            let first = *first_named.entry(role.clone()).or_insert(i);
            if first != i {
                self.fault(format!("{entry}.role"), format!("{role} is named twice, first in matrix.roles[{first}]"));
                whole = false;
            }
            rows.push((role, permitted.into_iter().collect()));
        }
        whole.then(|| Matrix::new(rows))
    }

    /// The principals without faulty ones: then the configuration is refused anyway.
    pub(super) fn principals(&mut self, raw: Vec<RawPrincipal>, certificates: bool) -> Vec<Principal> {
        let mut principals: Vec<Principal> = Vec::new();
        let mut tokens: BTreeMap<String, usize> = BTreeMap::new();
        for (i, row) in raw.into_iter().enumerate() {
            let entry = format!("web.principals[{i}]");
            let by_certificate = row.certificate.is_some();
            let given =
                [("name", row.name.is_some()), ("role", row.role.is_some()), ("token_file", row.token_file.is_some() || by_certificate)];
            let proof = match (row.token_file, row.certificate) {
                (Some(file), None) => Some(Proof::Token(file)),
                (None, Some(name)) => Some(Proof::Certificate(name)),
                (None, None) => None,
                (Some(_), Some(_)) => {
                    self.fault(format!("{entry}.certificate"), "not together with token_file: one principal is known by one thing");
                    continue;
                }
            };
            let (Some(name), Some(role), Some(proof)) = (row.name, row.role, proof) else {
                self.missing(&entry, &given);
                continue;
            };
            if principals.iter().any(|p| p.name == name) {
                self.fault(format!("{entry}.name"), format!("{name} is named twice"));
            }
            if name == crate::engine::ACTOR {
                self.fault(format!("{entry}.name"), "is what the daemon itself is called in records");
            }
            if role == OWN_ROLE {
                self.fault(format!("{entry}.role"), format!("{OWN_ROLE} is the daemon's own role"));
            }
            match &proof {
                Proof::Token(file) => self.token(&entry, i, file, &mut tokens),
                Proof::Certificate(_) if !certificates => self.fault(format!("{entry}.certificate"), NO_CLIENT_CA),
                Proof::Certificate(_) if principals.iter().any(|p| p.proof == proof) => {
                    self.fault(format!("{entry}.certificate"), "names the certificate of another principal");
                }
                Proof::Certificate(_) => {}
            }
            principals.push(Principal { name, role, proof });
        }
        principals
    }

    fn token(&mut self, entry: &str, i: usize, file: &SecretFile, tokens: &mut BTreeMap<String, usize>) {
        let path = format!("{entry}.token_file");
        match file.read() {
            Err(e) => self.fault(path, e.explained()),
            Ok(token) => {
                if let Some(first) = tokens.insert(token.expose().to_owned(), i) {
                    self.fault(path.clone(), format!("holds the same token as web.principals[{first}]"));
                }
                if token.expose().len() < TOKEN_MIN {
                    self.warn(&path, format!("the token has fewer than {TOKEN_MIN} characters"));
                }
                if file.world_readable() {
                    self.warn(&path, "the secret file can be read by every user of this machine");
                }
            }
        }
    }

    /// The owners without faulty entries: then the configuration is refused anyway.
    pub(super) fn owners(&mut self, raw: Vec<RawOwner>) -> Owners {
        let mut entries: Vec<(String, String)> = Vec::new();
        for (i, row) in raw.into_iter().enumerate() {
            let entry = format!("policy.owners[{i}]");
            let (Some(servers), Some(owner)) = (row.servers.clone(), row.owner.clone()) else {
                self.missing(&entry, &[("servers", row.servers.is_some()), ("owner", row.owner.is_some())]);
                continue;
            };
            if let Some(first) = entries.iter().position(|(named, _)| *named == servers) {
                self.fault(format!("{entry}.servers"), format!("{servers} is named twice, first in policy.owners[{first}]"));
            }
            entries.push((servers, owner));
        }
        Owners::new(entries)
    }

    fn missing(&mut self, entry: &str, keys: &[(&str, bool)]) {
        for (key, _) in keys.iter().filter(|(_, given)| !given) {
            let path = format!("{entry}.{key}");
            if self.sound(&[entry, &path]) {
                self.fault(path, "missing");
            }
        }
    }
}

/// Warnings about who may do what.
pub(super) fn doubts(config: &Config) -> Vec<Doubt> {
    let matrix = &config.policy.matrix;
    let barred = config.policy.rungs.iter().map(|r| r.action).filter(|action| !matrix.permits(OWN_ROLE, *action));
    let barred = barred.map(|action| {
        let why =
            format!("{action} is enabled, but matrix.roles does not permit it to the daemon's own role ({OWN_ROLE}): held not_permitted");
        (true, "policy.rungs", why)
    });
    let unknown = config.web.principals.iter().filter(|p| !matrix.knows(&p.role));
    let unknown = unknown.map(|p| {
        (true, "web.principals", format!("{} has the role {}, which matrix.roles does not list: it may do nothing", p.name, p.role))
    });
    barred.chain(unknown).collect()
}
