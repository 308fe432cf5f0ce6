//! Structured logs on stderr.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, LogLevel};

const fn severity(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// What is wrong with the logging settings.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("logging is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets logging up for the whole process.
///
/// # Errors
/// It was set up before.
pub fn init(level: LogLevel, format: LogFormat) -> Result<(), TelemetryError> {
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::registry().with(layer(level, format, ansi, std::io::stderr)).try_init().map_err(TelemetryError::Twice)
}

/// Our own events from `level` on; of the libraries only warnings and errors, whatever the level: below that they may
/// write request headers, and with them the API key.
fn filter(level: LogLevel) -> Targets {
    let level = severity(level);
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("hangar_medic", level)
}

fn layer<S, W>(level: LogLevel, format: LogFormat, ansi: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // A log that cannot be written must not stop the daemon: reporting that on the same stderr would panic.
    match format {
        LogFormat::Json => {
            let json = fmt::layer().json().flatten_event(true).with_span_list(false);
            json.with_writer(writer).log_internal_errors(false).with_filter(filter(level)).boxed()
        }
        LogFormat::Logfmt => {
            let logfmt = tracing_logfmt::builder().with_span_path(false).layer();
            logfmt.with_writer(writer).log_internal_errors(false).with_filter(filter(level)).boxed()
        }
        LogFormat::Pretty => {
            let pretty = fmt::layer().compact().with_target(false).with_ansi(ansi);
            pretty.with_writer(writer).log_internal_errors(false).with_filter(filter(level)).boxed()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(buf);
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(level: LogLevel, format: LogFormat, act: impl FnOnce()) -> Vec<String> {
        let page = Page::default();
        let writer = page.clone();
        let subscriber = tracing_subscriber::registry().with(layer(level, format, false, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, act);
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn each_format_writes_one_line_an_event_with_its_fields() {
        let said = |format| lines(LogLevel::Info, format, || tracing::info!(mcp_server = "api", reason = "crashed", "server is dead"));
        let json: serde_json::Value = serde_json::from_str(&said(LogFormat::Json)[0]).unwrap();
        assert_eq!((&json["mcp_server"], &json["reason"], &json["message"]), (&"api".into(), &"crashed".into(), &"server is dead".into()));
        let logfmt = said(LogFormat::Logfmt).concat();
        assert!(
            logfmt.contains("level=info") && logfmt.contains("mcp_server=api") && logfmt.contains("message=\"server is dead\""),
            "{logfmt}"
        );
        let pretty = said(LogFormat::Pretty).concat();
        assert!(pretty.contains("INFO server is dead mcp_server=\"api\" reason=\"crashed\""), "{pretty}");
    }

    #[test]
    fn hostile_text_forges_no_line_and_sends_no_escape_to_a_terminal() {
        let hostile = "api\nts=1 level=error \u{1b}[31mred";
        for format in [LogFormat::Json, LogFormat::Logfmt, LogFormat::Pretty] {
            let said = lines(LogLevel::Info, format, || tracing::warn!(mcp_server = hostile, detail = %hostile.escape_debug(), "odd id"));
            assert_eq!(said.len(), 1, "{format:?}: {said:?}");
            assert!(!said[0].contains('\u{1b}'), "{format:?}: {said:?}");
        }
    }

    #[test]
    fn the_level_bounds_our_events_and_libraries_never_go_below_warnings() {
        let count = |level| {
            lines(level, LogFormat::Logfmt, || {
                tracing::error!("1");
                tracing::info!("2");
                tracing::trace!("3");
                tracing::trace!(target: "hyper::proto", "authorization: secret");
                tracing::warn!(target: "sqlx::query", "slow");
            })
            .len()
        };
        assert_eq!([LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Trace].map(count), [1, 2, 3, 4]);
    }
}
