//! Who may. Loopback is no identity, since Hangar's stdio servers share it: without credentials only health, metrics,
//! the webhook and reads without upstream text are answered.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
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

/// Whether a web page of another site sent it: a browser says so, and nothing else does. There is no cookie to ride on;
/// this is the second lock.
pub(super) fn cross_site(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get_all(name).iter().map(|v| v.to_str().unwrap_or("?").to_owned()).collect::<Vec<_>>();
    let foreign = text(HeaderName::from_static("sec-fetch-site")).iter().any(|site| site != "same-origin" && site != "none");
    let host = text(header::HOST).pop().unwrap_or_default();
    let ours = |origin: &String| {
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        of.is_some_and(|of| !host.is_empty() && of.eq_ignore_ascii_case(&host))
    };
    foreign || !text(header::ORIGIN).iter().all(ours)
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
    fn what_a_page_of_another_site_sends_is_told_by_its_browser() {
        let check = |headers: &[(&str, &str)], foreign: bool| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
            }
            assert_eq!(cross_site(&map), foreign, "{headers:?}");
        };
        let host = ("host", "127.0.0.1:9923");
        check(&[host], false);
        check(&[host, ("origin", "http://127.0.0.1:9923"), ("sec-fetch-site", "same-origin")], false);
        check(&[host, ("origin", "https://127.0.0.1:9923")], false);
        for origin in ["null", "http://evil.example", "http://127.0.0.1:9924", "http://127.0.0.1", "127.0.0.1:9923", "", "file://"] {
            check(&[host, ("origin", origin)], true);
        }
        check(&[host, ("origin", "http://127.0.0.1:9923"), ("origin", "http://evil.example")], true);
        for site in ["cross-site", "same-site", ""] {
            check(&[host, ("sec-fetch-site", site)], true);
        }
        check(&[("origin", "http://")], true);
    }

    #[test]
    fn off_loopback_any_name_is_answered() {
        for ip in ["0.0.0.0", "::", "10.0.0.7", "fe80::1"] {
            assert_eq!(HostRule::for_address(ip.parse().unwrap()), HostRule::Any);
        }
        assert!(HostRule::Any.allows("medic.mcp.svc:9923") && HostRule::Any.allows(""));
    }
}
