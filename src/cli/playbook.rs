//! The playbook's functions, offline: `recommend`, `assess`, `recovery-metrics`.

use std::io::{self, Write};

use super::args::{AssessArgs, OK, REFUSED, RecommendArgs, RecoveryMetricsArgs, USAGE};
use super::assess::{break_glass_authorised, print_report};
use super::attempt_input::{Refused, read_file};
use super::recommend::print_recommendation;
use super::recovery_metrics::print_metrics;
use crate::clock;
use crate::config;
use crate::policy::{Ask, Matrix, RecoveryFold, Tried, assess, recommend};

/// `recommend`. Returns the exit code: 0, or 2 for bad input.
pub fn run_recommend(args: &RecommendArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let mut tried = Tried::default();
    if let Some(file) = &args.attempts
        && let Err(refused) = read_file(file, clock::now(), &mut |attempt| tried.add(&attempt))
    {
        return bad_input(err, &refused);
    }
    // The command line cannot be without a symptom.
    let Some(found) = recommend(&args.symptoms, &tried) else { return Ok(USAGE) };
    print_recommendation(out, &found, args.format.format)?;
    Ok(OK)
}

/// `assess`. Returns the exit code: 0 allowed, 3 refused, 2 bad input.
pub fn run_assess(args: &AssessArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let matrix = match &args.config_file {
        None => Matrix::default(),
        Some(file) => match config::load(Some(file), &config::Overrides::default()) {
            Ok(config) => config.policy.matrix,
            Err(faults) => {
                faults.iter().try_for_each(|fault| writeln!(err, "{}", fault.about(Some(file))))?;
                return Ok(USAGE);
            }
        },
    };
    let mut attempts = Vec::new();
    if let Some(file) = &args.attempts
        && let Err(refused) = read_file(file, clock::now(), &mut |attempt| attempts.push(attempt))
    {
        return bad_input(err, &refused);
    }
    let report = assess(
        &matrix,
        &Ask {
            restart_class: args.restart_class,
            role: &args.role,
            attempts: &attempts,
            break_glass_requested: args.break_glass,
            break_glass_authorised: break_glass_authorised(),
        },
    );
    print_report(out, &report, args.format.format)?;
    Ok(if report.allowed { OK } else { REFUSED })
}

/// `recovery-metrics` over given attempts. Returns the exit code: 0, or 2 for bad input.
pub fn run_recovery_metrics(args: &RecoveryMetricsArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let mut fold = RecoveryFold::default();
    // The command line has either this or a store.
    let Some(attempts) = &args.attempts else { return Ok(USAGE) };
    if let Err(refused) = read_file(attempts, clock::now(), &mut |attempt| fold.add(attempt.action, attempt.outcome)) {
        return bad_input(err, &refused);
    }
    print_metrics(out, &fold.report(), args.format.format)?;
    Ok(OK)
}

fn bad_input(err: &mut dyn Write, refused: &Refused) -> io::Result<u8> {
    writeln!(err, "{refused}")?;
    Ok(USAGE)
}
