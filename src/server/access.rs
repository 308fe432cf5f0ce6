//! Who may. Loopback is no identity, since Hangar's stdio servers share it: without credentials only health, metrics,
//! the webhook and reads without upstream text are answered.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;

/// 127.0.0.0/8, ::1 and 127.0.0.0/8 written as IPv6.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
    }
}

/// Which Host headers are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostRule {
    /// A web page whose name was made to point at loopback must not read us through the operator's browser.
    LoopbackNames,
    /// Off loopback the names by which we are reached are not ours to know.
    Any,
}

impl HostRule {
    pub(super) fn for_address(ip: IpAddr) -> Self {
        if is_loopback(ip) { Self::LoopbackNames } else { Self::Any }
    }

    fn allows(self, authority: &str) -> bool {
        match self {
            Self::Any => true,
            Self::LoopbackNames => authority.parse::<Authority>().is_ok_and(|a| names_loopback(a.host())),
        }
    }
}

fn names_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok_and(|ip| is_loopback(ip.into())),
        None => host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback),
    }
}

/// Refuses a request whose Host header, or absolute target, is not a name of loopback.
pub(super) async fn check_host(State(rule): State<HostRule>, request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, second) = (hosts.next().and_then(|h| h.to_str().ok()).unwrap_or(""), hosts.next());
    let target = request.uri().authority().map(Authority::as_str);
    if second.is_none() && rule.allows(host) && target.is_none_or(|t| rule.allows(t)) {
        return next.run(request).await;
    }
    ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", "the Host header must be an address of loopback or localhost").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_answered_on_loopback() {
        let rule = HostRule::for_address("127.0.0.1".parse().unwrap());
        for host in
            ["127.0.0.1:9923", "127.0.0.1", "localhost:9923", "LOCALHOST", "localhost.:1", "[::1]:9923", "127.9.9.9", "[::ffff:127.0.0.1]"]
        {
            assert!(rule.allows(host), "{host}");
        }
        for host in
            ["", "evil.example", "127.0.0.1.evil.example:9923", "localhost.evil.example", "10.0.0.1", "[::2]", "0.0.0.0", "a b", "::1"]
        {
            assert!(!rule.allows(host), "{host}");
        }
    }

    #[test]
    fn off_loopback_any_name_is_answered() {
        for ip in ["0.0.0.0", "::", "10.0.0.7", "fe80::1"] {
            assert_eq!(HostRule::for_address(ip.parse().unwrap()), HostRule::Any);
        }
        assert!(HostRule::Any.allows("medic.mcp.svc:9923") && HostRule::Any.allows(""));
    }
}
