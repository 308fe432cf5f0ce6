//! `hangar-medic incidents list|show`, once or with `--watch` again and again.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::args::{Format, IncidentState, IncidentsCommand, IncidentsListArgs, IncidentsShowArgs};
use super::client::Medic;
use super::incidents::{print_incident, print_incidents};
use super::paint::Paint;
use crate::server::story::Story;

const EVERY: Duration = Duration::from_secs(2);
/// Cursor to the corner, and everything away.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

/// Prints what is asked for.
///
/// # Errors
/// The daemon does not answer (with `--watch`: at the first look; later that is shown), or `out` cannot be written.
pub async fn incidents(command: IncidentsCommand, paint: Paint, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        IncidentsCommand::List(args) => {
            let medic = Medic::new(&args.daemon.medic_url)?;
            again(args.watch, args.format.format, out, async || Ok((list(&medic, &args, paint).await?, false))).await
        }
        IncidentsCommand::Show(args) => {
            let medic = Medic::new(&args.daemon.medic_url)?;
            again(args.watch, args.format.format, out, async || show(&medic, &args, paint).await).await
        }
    }
}

async fn list(medic: &Medic, args: &IncidentsListArgs, paint: Paint) -> anyhow::Result<Vec<u8>> {
    let state = match args.state {
        IncidentState::Open => "open",
        IncidentState::Closed => "closed",
        IncidentState::All => "all",
    };
    let mut text = Vec::new();
    print_incidents(&mut text, &medic.incidents(state).await?, paint, args.format.format)?;
    Ok(text)
}

/// The text, and whether the incident is over.
async fn show(medic: &Medic, args: &IncidentsShowArgs, paint: Paint) -> anyhow::Result<(Vec<u8>, bool)> {
    let incident = medic.incident(&args.id).await?;
    let attempts = medic.attempts(Some(&args.id)).await?;
    let over = incident.closed_at.is_some();
    let mut text = Vec::new();
    print_incident(&mut text, &Story { incident, attempts }, paint, args.format.format)?;
    Ok((text, over))
}

/// On a terminal each look replaces the one before; elsewhere only what has changed is printed.
async fn again(
    watch: bool,
    format: Format,
    out: &mut dyn Write,
    mut look: impl AsyncFnMut() -> anyhow::Result<(Vec<u8>, bool)>,
) -> anyhow::Result<()> {
    let clears = watch && format == Format::Table && io::stdout().is_terminal();
    let (mut text, mut over) = look().await?;
    let mut shown: Option<Vec<u8>> = None;
    loop {
        if shown.as_ref() != Some(&text) {
            if clears {
                out.write_all(CLEAR.as_bytes())?;
            } else if shown.is_some() && format == Format::Table {
                writeln!(out)?;
            }
            out.write_all(&text)?;
            out.flush()?;
            shown = Some(text);
        }
        if !watch || over {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
        (text, over) = match look().await {
            Ok(next) => next,
            // It may be restarting.
            Err(error) => (format!("{error:#}\n").into_bytes(), false),
        };
    }
}
