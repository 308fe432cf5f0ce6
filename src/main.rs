//! Parses the command line and runs.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use hangar_medic::cli::args::{AttemptsCommand, INVALID, LadderArgs, McpArgs, OK, RunArgs};
use hangar_medic::cli::client::Medic;
use hangar_medic::cli::paint::Paint;
use hangar_medic::cli::{
    Cli, Command, attempts, brakes, break_glass, check_config, classify, doctor, ladder, mcp, playbook, recovery_metrics, watch,
};
use hangar_medic::{config, harden, policy, run, telemetry};

/// Few threads: one runs the engine, the other the server.
const WORKERS: usize = 2;
/// After this nobody waits for a blocked thread any more.
const SHUTDOWN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_closed_pipe(&error) => ExitCode::from(OK),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "hangar-medic: {error:#}");
            ExitCode::from(INVALID)
        }
    }
}

/// `hangar-medic … | head` is no failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}

fn dispatch(command: Command) -> anyhow::Result<u8> {
    let mut out = std::io::stdout();
    match command {
        Command::Run(args) => return daemon(args),
        Command::CheckConfig(args) => return Ok(check_config::run(&args, &mut out, &mut std::io::stderr().lock())?),
        Command::Doctor(args) => return Ok(block_on(doctor::run(&args, Paint::for_stdout(), &mut out))??),
        Command::Classify(args) => classify::run(&args, &mut out)?,
        Command::Ladder(args) => return print_ladder(&args, &mut out),
        Command::Recommend(args) => return Ok(playbook::run_recommend(&args, &mut out, &mut std::io::stderr().lock())?),
        Command::Assess(args) => return Ok(playbook::run_assess(&args, &mut out, &mut std::io::stderr().lock())?),
        Command::RecoveryMetrics(args) if args.config_file.is_some() => {
            let file = args.config_file.clone().unwrap_or_default();
            block_on(recovery_metrics::run_stored(&args, &file, &mut out))??;
        }
        Command::RecoveryMetrics(args) => return Ok(playbook::run_recovery_metrics(&args, &mut out, &mut std::io::stderr().lock())?),
        Command::BreakGlass(args) => return block_on(break_glass::run(&args, &mut out))?,
        Command::Approve(args) => return block_on(brakes::approve(&args, &mut out))?,
        Command::Hold(args) => return block_on(brakes::hold(&args, &mut out))?,
        Command::Pause(args) => return block_on(brakes::pause(&args, &mut out))?,
        Command::Resume(args) => return block_on(brakes::resume(&args, &mut out))?,
        Command::Mcp(args) => return serve_mcp(&args),
        Command::Incidents(command) => block_on(watch::incidents(command, Paint::for_stdout(), &mut out))??,
        Command::Completions(args) => clap_complete::generate(args.shell, &mut Cli::command(), "hangar-medic", &mut out),
        Command::Attempts(command) => return block_on(attempts_command(command, &mut out))?,
    }
    Ok(OK)
}

fn daemon(args: RunArgs) -> anyhow::Result<u8> {
    let file = args.config_file.as_deref();
    let overrides = config::Overrides::from(args.overrides);
    let config = match config::load(file, &overrides) {
        Ok(config) => config,
        Err(faults) => {
            let mut err = std::io::stderr().lock();
            for fault in &faults {
                writeln!(err, "{}", fault.about(file))?;
            }
            let judge = file.map_or_else(
                || "see `hangar-medic run --help`".to_owned(),
                |f| format!("judge it with `hangar-medic check-config {}`", f.display()),
            );
            writeln!(err, "hangar-medic: not started: correct what is said above; {judge}")?;
            return Ok(INVALID);
        }
    };
    let _armed = hangar_medic::crash::arm();
    telemetry::init(config.log.level, config.log.format)?;
    harden::leave_no_dump();
    for warning in &config.warnings {
        tracing::warn!(event = "config_warning", "{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().context("no runtime")?;
    let origin = run::Origin { file: args.config_file, overrides };
    let ended = runtime.block_on(run::run(config, origin));
    runtime.shutdown_timeout(SHUTDOWN);
    ended?;
    Ok(OK)
}

fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    Ok(runtime.block_on(future))
}

/// The policy of a configuration file, or the default; every fault goes to stderr.
fn policy_of(file: Option<&Path>) -> anyhow::Result<Option<policy::Policy>> {
    let Some(file) = file else { return Ok(Some(policy::Policy::default())) };
    match config::load(Some(file), &config::Overrides::default()) {
        Ok(config) => Ok(Some(config.policy)),
        Err(faults) => {
            let mut err = std::io::stderr().lock();
            for fault in &faults {
                writeln!(err, "{}", fault.about(Some(file)))?;
            }
            Ok(None)
        }
    }
}

fn print_ladder(args: &LadderArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let Some(policy) = policy_of(args.config_file.as_deref())? else { return Ok(INVALID) };
    ladder::print_ladder(out, &policy::ladder_document(|rung| policy.why_not(rung)), args.format.format)?;
    Ok(OK)
}

fn serve_mcp(args: &McpArgs) -> anyhow::Result<u8> {
    let Some(policy) = policy_of(args.config_file.as_deref())? else { return Ok(INVALID) };
    block_on(mcp::run(args, policy))??;
    Ok(OK)
}

async fn attempts_command(command: AttemptsCommand, out: &mut (dyn Write + Send)) -> anyhow::Result<u8> {
    match command {
        AttemptsCommand::List(args) => {
            if let Some(file) = &args.config_file {
                attempts::list_stored(&args, file, out).await?;
            } else {
                let found = Medic::new(&args.daemon.medic_url)?.attempts(args.incident.as_deref()).await?;
                attempts::print_attempts(out, &found, args.format.format)?;
            }
        }
        AttemptsCommand::Export(args) => attempts::export(&args, out).await?,
        AttemptsCommand::BeginAnew(store) => attempts::begin_anew(&store, out)?,
        AttemptsCommand::Verify(args) => return attempts::verify(&args, out).await,
    }
    Ok(OK)
}
