//! `GET /api/system/`: which Hangar this is, and what it knows of its replicas.

use jiff::SignedDuration;
use serde::Deserialize;

use super::{clean_to, json};

/// `GET /api/system/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Changes with every start of Hangar.
    pub instance_id: Option<String>,
    /// As Hangar writes it; [`parse_version`] reads it.
    pub version: Option<String>,
    /// It runs the loops of the fleet now; `None`: it does not say.
    pub manages_fleet: Option<bool>,
    /// The management lease as it last saw it; `None`: it has seen nobody hold one, or shares its store with nobody.
    pub lease: Option<Lease>,
}

/// The management lease, as one replica saw it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// `instance_id` of the replica that holds it.
    pub holder: String,
    /// Rises with every new holder.
    pub generation: u64,
    /// From the answer on; negative: it ran out that long ago.
    pub expires_in: SignedDuration,
    /// How long the replica that answers would hold it.
    pub own_ttl: SignedDuration,
}

/// Reads which Hangar this is.
pub(in super::super) fn system(body: &[u8]) -> Result<System, String> {
    #[derive(Deserialize)]
    struct Raw {
        system: RawSystem,
    }
    #[derive(Deserialize)]
    struct RawSystem {
        version: Option<String>,
        instance: Option<Replica>,
    }
    #[derive(Deserialize, Default)]
    struct Replica {
        instance_id: Option<String>,
        manages_fleet: Option<bool>,
        management_lease: Option<RawLease>,
    }
    #[derive(Deserialize)]
    struct RawLease {
        holder: String,
        generation: u64,
        expires_in_s: f64,
        my_lease_ttl_s: f64,
    }
    let raw = json::<Raw>(body)?.system;
    let instance = raw.instance.unwrap_or_default();
    let seconds = |s: f64| SignedDuration::try_from_secs_f64(s).map_err(|e| format!("management_lease: {e}"));
    let lease = |raw: RawLease| -> Result<Lease, String> {
        let (holder, generation) = (clean_to(&raw.holder, 200), raw.generation);
        Ok(Lease { holder, generation, expires_in: seconds(raw.expires_in_s)?, own_ttl: seconds(raw.my_lease_ttl_s)? })
    };
    Ok(System {
        instance_id: instance.instance_id,
        version: raw.version,
        manages_fleet: instance.manages_fleet,
        lease: instance.management_lease.map(lease).transpose()?,
    })
}
