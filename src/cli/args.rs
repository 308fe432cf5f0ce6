//! Every command and flag, with Prometheus' habits: dotted long flags, no short ones.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use super::brakes::{ApproveArgs, HoldArgs, PauseArgs, ResumeArgs};
use crate::attempt_log::Head;
use crate::config::{LogFormat, LogLevel, Overrides};
use crate::policy::{Mode, Rung, Symptom};

/// Exit code: everything as asked.
pub const OK: u8 = 0;
/// Exit code: the configuration is invalid, or what was asked cannot be done.
pub const INVALID: u8 = 1;
/// Exit code: the command line or its input cannot be understood (clap's own).
pub const USAGE: u8 = 2;

/// Exit code: the gate refuses.
pub const REFUSED: u8 = 3;

/// Address at which `run` listens when nothing else is said.
pub const DEFAULT_MEDIC_URL: &str = "http://127.0.0.1:9923";

/// Brings dead MCP servers of an MCP Hangar back, proves it, and writes down how.
#[derive(Debug, Parser)]
#[command(
    name = "hangar-medic",
    version,
    after_help = "Start with:\n  hangar-medic run --hangar.url http://127.0.0.1:8000 --mode observe\n\n\
        Exit codes: 0 done, 1 invalid configuration or failure, 2 wrong usage or input, 3 refused by the gate."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch a Hangar and bring its dead servers back, until SIGTERM
    Run(RunArgs),
    /// Judge a configuration file: every fault with its path, or the effective configuration
    CheckConfig(CheckConfigArgs),
    /// Check everything that the daemon needs, and say what to do about what is wrong
    Doctor(DoctorArgs),
    /// Tell which servers a log of Hangar's shows dead at its end, and why
    Classify(super::classify::ClassifyArgs),
    /// Print the recovery ladder: every action, and whether it is on
    Ladder(LadderArgs),
    /// Recommend what to try next for these symptoms: the narrowest action first
    Recommend(RecommendArgs),
    /// Ask the gate whether a role may do this, given what was tried: exit 0 allowed, 3 refused
    Assess(AssessArgs),
    /// Tell how often a full restart was spared, over a log of attempts
    RecoveryMetrics(RecoveryMetricsArgs),
    /// Ask a running daemon for break-glass: one action on one target, once, for a short time
    BreakGlass(BreakGlassArgs),
    /// Approve one action of an incident, for the evidence that was looked at
    Approve(ApproveArgs),
    /// Hold a server: nothing is done to it until a person resumes it
    Hold(HoldArgs),
    /// Pause everything, or one server, for a time
    Pause(PauseArgs),
    /// End what a person holds: a server's hold order and pause, or the pause of everything
    Resume(ResumeArgs),
    /// Answer an agent's questions as an MCP server over stdio
    Mcp(McpArgs),
    /// The incidents of a running daemon
    #[command(subcommand)]
    Incidents(IncidentsCommand),
    /// The attempts: what was tried, and what came of it
    #[command(subcommand)]
    Attempts(AttemptsCommand),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
}

/// `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hangar-medic completions bash > /etc/bash_completion.d/hangar-medic\n  \
    hangar-medic completions zsh > \"${fpath[1]}/_hangar-medic\"\n  \
    hangar-medic completions fish > ~/.config/fish/completions/hangar-medic.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Form of what is printed on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For a person
    #[default]
    Table,
    /// For a program
    Json,
}

/// `--format` of every command that prints.
#[derive(Debug, Clone, Copy, Args)]
pub struct FormatArgs {
    /// Form of the output
    #[arg(long = "format", value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = "One of --config.file and --hangar.url is needed. Flags go over the file.\n\
    Examples:\n  hangar-medic run --hangar.url http://127.0.0.1:8000\n  hangar-medic run --config.file hangar-medic.yaml --mode observe")]
pub struct RunArgs {
    /// Configuration file (YAML); none: flags and defaults
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub overrides: OverrideArgs,
}

/// The flags that go over the file.
#[derive(Debug, Clone, Default, Args)]
pub struct OverrideArgs {
    /// Hangar's address, for example http://127.0.0.1:8000; a proxy's base path is kept
    #[arg(long = "hangar.url", value_name = "URL")]
    pub hangar_url: Option<String>,
    /// Stable name of this Hangar in records and labels [default: host:port of --hangar.url]
    #[arg(long = "hangar.instance", value_name = "NAME")]
    pub hangar_instance: Option<String>,
    /// File with an API key that may read and start servers; a key itself is never a flag
    #[arg(long = "hangar.api-key-file", value_name = "FILE")]
    pub hangar_api_key_file: Option<PathBuf>,
    /// Hangar's --log-file: tells why a server died where REST cannot
    #[arg(long = "hangar.log-file", value_name = "FILE")]
    pub hangar_log_file: Option<PathBuf>,
    /// Prometheus' address, as a second source
    #[arg(long = "prometheus.url", value_name = "URL")]
    pub prometheus_url: Option<String>,
    /// Where metrics, health and the API answer [default: 127.0.0.1:9923]
    #[arg(long = "web.listen-address", value_name = "IP:PORT")]
    pub web_listen_address: Option<String>,
    /// Let whoever reaches --web.listen-address read, also off loopback
    #[arg(long = "web.unsafe-no-auth")]
    pub web_unsafe_no_auth: bool,
    /// Directory of the attempt log [default: ./data]
    #[arg(long = "storage.path", value_name = "DIR")]
    pub storage_path: Option<PathBuf>,
    /// observe records what would be done, act does it [default: act]
    #[arg(long = "mode", value_name = "MODE", value_parser = words(Mode::ALL, Mode::as_str))]
    pub mode: Option<Mode>,
    /// Least severe line of our own log [default: info]
    #[arg(long = "log.level", value_name = "LEVEL", value_parser = words(LogLevel::ALL, LogLevel::as_str))]
    pub log_level: Option<LogLevel>,
    /// Form of our own log, on stderr [default: logfmt]
    #[arg(long = "log.format", value_name = "FORMAT", value_parser = words(LogFormat::ALL, LogFormat::as_str))]
    pub log_format: Option<LogFormat>,
}

impl From<OverrideArgs> for Overrides {
    fn from(args: OverrideArgs) -> Self {
        Self {
            hangar_url: args.hangar_url,
            hangar_instance: args.hangar_instance,
            hangar_api_key_file: args.hangar_api_key_file,
            hangar_log_file: args.hangar_log_file,
            prometheus_url: args.prometheus_url,
            web_listen_address: args.web_listen_address,
            web_unsafe_no_auth: args.web_unsafe_no_auth,
            storage_path: args.storage_path,
            mode: args.mode,
            log_level: args.log_level,
            log_format: args.log_format,
        }
    }
}

/// `check-config`.
#[derive(Debug, Args)]
#[command(after_help = "Prints the effective configuration (of secrets the path only) and exits 0, warnings on stderr;\n\
    or names every fault on stderr as `FILE: path: text` and exits 1.")]
pub struct CheckConfigArgs {
    /// The file to judge
    #[arg(value_name = "FILE", required_unless_present_any = ["schema", "example", "reference"])]
    pub file: Option<PathBuf>,
    /// Print the JSON Schema of the file instead
    #[arg(long = "schema", conflicts_with = "file")]
    pub schema: bool,
    /// Print a file to start from instead: every setting with its default, unit, bounds and reason
    #[arg(long = "example", conflicts_with_all = ["file", "schema"])]
    pub example: bool,
    /// Print every setting as a Markdown page instead
    #[arg(long = "reference", conflicts_with_all = ["file", "schema", "example"])]
    pub reference: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten, next_help_heading = "Judge as `run` would with")]
    pub overrides: OverrideArgs,
}

/// `doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Changes nothing: no server is started or stopped, nothing is written. Exit codes: 0 nothing failed, 1 something did.\n\
    Example:\n  hangar-medic doctor --config.file hangar-medic.yaml"
)]
pub struct DoctorArgs {
    /// Configuration file (YAML); none: flags and defaults
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten, next_help_heading = "Check as `run` would with")]
    pub overrides: OverrideArgs,
}

/// `ladder`.
#[derive(Debug, Args)]
pub struct LadderArgs {
    /// Tell what this configuration enables; none: the defaults
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `recommend`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hangar-medic recommend --symptom transport_eof --attempts tried.json\n\n\
    Soft: what it says never replaces `assess`. A manual process kill is never recommended.")]
pub struct RecommendArgs {
    /// What is seen; several: the narrowest first action over all of them
    #[arg(long = "symptom", value_name = "SYMPTOM", required = true, num_args = 1.., value_parser = words(Symptom::ALL, Symptom::as_str))]
    pub symptoms: Vec<Symptom>,
    /// What was tried: a JSON array or JSON Lines of attempts, or an export of the log; - for stdin; none: nothing
    #[arg(long = "attempts", value_name = "FILE")]
    pub attempts: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `assess`.
#[derive(Debug, Args)]
#[command(after_help = "The report is printed either way. Exit codes: 0 allowed, 3 refused, 2 bad input.\n\
    Break-glass is authorised by HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION in the environment, set and not empty.\n\
    It never lifts the class matrix.")]
pub struct AssessArgs {
    /// The action that is asked for
    #[arg(long = "restart-class", value_name = "CLASS", value_parser = words(Rung::ALL, Rung::as_str))]
    pub restart_class: Rung,
    /// Who asks: a row of the class matrix; any other role may do nothing
    #[arg(long = "role", value_name = "ROLE")]
    pub role: String,
    /// What was tried: a JSON array or JSON Lines of attempts, or an export of the log; - for stdin; none: nothing
    #[arg(long = "attempts", value_name = "FILE")]
    pub attempts: Option<PathBuf>,
    /// Ask for break-glass
    #[arg(long = "break-glass")]
    pub break_glass: bool,
    /// Take the class matrix of this configuration; none: the default
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `recovery-metrics`.
#[derive(Debug, Args)]
pub struct RecoveryMetricsArgs {
    /// A JSON array or JSON Lines of attempts, or an export of the log; - for stdin
    #[arg(long = "attempts", value_name = "FILE", required_unless_present = "config_file", conflicts_with = "config_file")]
    pub attempts: Option<PathBuf>,
    /// Over the store of this configuration instead
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub chain: ChainArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The running daemon that is asked.
#[derive(Debug, Clone, Args)]
pub struct DaemonArgs {
    /// Address of the running daemon
    #[arg(long = "medic.url", value_name = "URL", default_value = DEFAULT_MEDIC_URL)]
    pub medic_url: String,
}

/// `break-glass`.
#[derive(Debug, Args)]
#[command(after_help = "Granted only where HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION is set for the daemon, and only what the class\n\
    matrix permits the token's role. Exit codes: 0 granted, 3 refused.")]
pub struct BreakGlassArgs {
    /// The action that is to be opened
    #[arg(long = "action", value_name = "CLASS", value_parser = words(Rung::ALL, Rung::as_str))]
    pub action: Rung,
    /// What it is to be done to
    #[arg(long = "target", value_name = "TARGET")]
    pub target: String,
    /// Why, for whoever reads the record
    #[arg(long = "reason", value_name = "TEXT")]
    pub reason: String,
    /// How long the grant lasts, at most 15m
    #[arg(long = "duration", value_name = "DURATION", default_value = "10m")]
    pub duration: String,
    /// File with the bearer token of a principal
    #[arg(long = "token-file", value_name = "FILE")]
    pub token_file: PathBuf,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `mcp`.
#[derive(Debug, Args)]
#[command(
    after_help = "Speaks MCP on stdin and stdout; its own log, if any, goes to stderr. Without --token-file only the questions are\n\
    answered that need no daemon: ladder, recommend_actions, assess_escalation, recovery_metrics over given attempts."
)]
pub struct McpArgs {
    /// File with the bearer token of a principal: the running daemon is asked as that one
    #[arg(long = "token-file", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Take class matrix and rungs of this configuration; none: the defaults
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// The store that is read, with or without a running daemon.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Directory of the attempt log
    #[arg(long = "storage.path", value_name = "DIR", default_value = "./data")]
    pub storage_path: PathBuf,
    /// Take the store of this configuration instead, on a PostgreSQL server too
    #[arg(long = "config.file", value_name = "FILE", conflicts_with = "storage_path")]
    pub config_file: Option<PathBuf>,
}

/// Whose chain, where a store holds several.
#[derive(Debug, Clone, Args)]
pub struct ChainArgs {
    /// Of this instance [default: the configuration's, else the only one there is]
    #[arg(long = "instance", value_name = "NAME", conflicts_with = "all_instances")]
    pub instance: Option<String>,
    /// Of every instance that shares the store
    #[arg(long = "all-instances")]
    pub all_instances: bool,
}

/// `incidents`.
#[derive(Debug, Subcommand)]
pub enum IncidentsCommand {
    /// List incidents, the oldest first
    List(IncidentsListArgs),
    /// Tell one incident's story: what was seen, decided, sent and proved, in order
    Show(IncidentsShowArgs),
}

/// Which incidents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum IncidentState {
    Open,
    Closed,
    #[default]
    All,
}

/// `incidents list`.
#[derive(Debug, Args)]
pub struct IncidentsListArgs {
    /// Only these
    #[arg(long = "state", value_enum, default_value_t, value_name = "STATE")]
    pub state: IncidentState,
    /// Look again every 2 s, until Ctrl-C
    #[arg(long = "watch")]
    pub watch: bool,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `incidents show`.
#[derive(Debug, Args)]
pub struct IncidentsShowArgs {
    /// Its incident_id, as `incidents list` prints it
    #[arg(value_name = "ID")]
    pub id: String,
    /// Look again every 2 s, until it is over
    #[arg(long = "watch")]
    pub watch: bool,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `attempts`.
#[derive(Debug, Subcommand)]
pub enum AttemptsCommand {
    /// List the attempts of a running daemon, the oldest first
    List(AttemptsListArgs),
    /// Write every attempt of the store as JSON Lines
    Export(AttemptsExportArgs),
    /// Check the hash chain of the store: exit 1 names the first altered, missing or reordered record
    Verify(AttemptsVerifyArgs),
    /// After a store was damaged and kept aside: begin an empty one, without its hold orders, budgets and attempts
    BeginAnew(StoreArgs),
}

/// `attempts list`.
#[derive(Debug, Args)]
pub struct AttemptsListArgs {
    /// Only those of this incident
    #[arg(long = "incident", value_name = "ID")]
    pub incident: Option<String>,
    /// Read the store of this configuration and ask no daemon: needed for other instances
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub chain: ChainArgs,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `attempts export`.
#[derive(Debug, Args)]
pub struct AttemptsExportArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub chain: ChainArgs,
}

/// `attempts verify`.
#[derive(Debug, Args)]
pub struct AttemptsVerifyArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub chain: ChainArgs,
    /// Check an export instead, without any store; - for stdin
    #[arg(long = "file", value_name = "FILE", conflicts_with_all = ["storage_path", "config_file", "instance", "all_instances"])]
    pub file: Option<PathBuf>,
    /// The last record as it was noted earlier: shows that records were taken off the end
    #[arg(long = "head", value_name = "SEQ:HASH", value_parser = head, conflicts_with = "all_instances")]
    pub head: Option<Head>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `24:9f86d0…`, as `attempts verify` prints it.
fn head(text: &str) -> Result<Head, String> {
    let parts = text.split_once(':').and_then(|(seq, hash)| Some((seq.parse().ok()?, hash)));
    let (seq, hash) = parts.ok_or("must be SEQ:HASH, as `attempts verify` prints it")?;
    if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("the hash must be 64 lower-case hex digits".to_owned());
    }
    Ok(Head { seq, hash: hash.to_owned() })
}

/// A flag that takes one word of a closed set; the help and the error list them.
fn words<T>(all: &'static [T], word: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Copy + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().copied().map(word)).try_map(|word| word.parse::<T>())
}
