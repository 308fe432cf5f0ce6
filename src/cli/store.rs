//! The attempt log as the commands read it: in a directory, or where a configuration has it.

use anyhow::bail;

use super::args::{ChainArgs, StoreArgs};
use crate::attempt_log::{AttemptLog, Log, LogError, Shared, Store};
use crate::config::{self, Overrides, Storage};

/// Opens one chain for reading, beside a running daemon or without one. `damaged`: reads of a damaged file what can be read.
pub async fn open(storage: &Storage, instance: Option<&str>, damaged: bool) -> Result<Box<dyn Log>, LogError> {
    Ok(if storage.postgres.is_set() {
        Box::new(Shared::open_read_only(&storage.postgres, instance).await?)
    } else if damaged {
        Box::new(Store::open_to_verify(&storage.path, instance).await?)
    } else {
        Box::new(Store::open_read_only(&storage.path, instance).await?)
    })
}

/// The instances that have a chain there, in order.
async fn instances(storage: &Storage) -> Result<Vec<String>, LogError> {
    if storage.postgres.is_set() {
        Shared::open_read_only(&storage.postgres, Some("")).await?.instances().await
    } else {
        Store::open_read_only(&storage.path, Some("")).await?.instances().await
    }
}

/// Where the store is, and the instance that a configuration is for.
pub fn place(store: &StoreArgs) -> anyhow::Result<(Storage, Option<String>)> {
    Ok(match &store.config_file {
        None => (Storage { path: store.storage_path.clone(), ..Storage::default() }, None),
        Some(file) => match config::load(Some(file), &Overrides::default()) {
            Ok(config) => (config.storage, Some(config.hangar.instance)),
            Err(faults) => {
                let lines: Vec<String> = faults.iter().map(|fault| fault.about(Some(file))).collect();
                bail!("{}", lines.join("\n"));
            }
        },
    })
}

/// The store, and the instances whose chains are asked for. `None`: the only one there is.
async fn wanted(store: &StoreArgs, chain: &ChainArgs) -> anyhow::Result<(Storage, Vec<Option<String>>)> {
    let (storage, own) = place(store)?;
    let instances =
        if chain.all_instances { instances(&storage).await?.into_iter().map(Some).collect() } else { vec![chain.instance.clone().or(own)] };
    Ok((storage, instances))
}

/// Opens every chain that is asked for, one after the other.
pub async fn each(
    store: &StoreArgs,
    chain: &ChainArgs,
    damaged: bool,
    mut each: impl AsyncFnMut(&dyn Log) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (storage, instances) = wanted(store, chain).await?;
    for instance in instances {
        let log = open(&storage, instance.as_deref(), damaged).await?;
        each(&*log).await?;
    }
    Ok(())
}

/// The newest attempts of every chain that is asked for, oldest first.
pub async fn attempts(
    store: &StoreArgs,
    chain: &ChainArgs,
    incident: Option<&str>,
    limit: u32,
) -> anyhow::Result<Vec<crate::policy::Attempt>> {
    let mut found = Vec::new();
    each(store, chain, false, async |log: &dyn Log| {
        found.extend(AttemptLog::attempts(log, incident, limit).await?);
        // No more in memory than are shown, however many instances there are.
        found.sort_by_key(|attempt| attempt.started_at);
        let beyond = found.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        found.drain(..beyond);
        Ok(())
    })
    .await?;
    Ok(found)
}
