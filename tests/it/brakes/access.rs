//! Who may: a neighbour on loopback without a token can change nothing, whatever it tries.

use hangar_medic::server::{Permission, ROUTES};
use serde_json::{Value, json};

use crate::playbook::api::{ADMIN, OPERATOR, VIEWER, World};
use crate::support::http;

/// The path of a route with something in its place-holders.
fn filled(route: &str) -> String {
    route.replace("{id}", "api").replace("{name}", "crashed")
}

const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"];

fn changes(permission: Permission) -> bool {
    match permission {
        Permission::Health | Permission::Metrics | Permission::Read | Permission::Told => false,
        Permission::Form | Permission::Ask | Permission::Brake | Permission::Reload => true,
    }
}

/// All that a change could have changed.
fn state(w: &World) -> (Vec<String>, Value, Value, Value) {
    let status = w.medic.status();
    (w.kinds(), status["pauses"].clone(), status["hold_orders"].clone(), status["mode"].clone())
}

#[test]
fn without_a_token_every_route_and_method_changes_nothing() {
    let w = World::start(true, &json!({"requests": {"act": true}}));
    let before = state(&w);
    let bodies = [
        String::new(),
        json!({"reason": "r", "duration": "10m"}).to_string(),
        json!({"action": "session_reconnect", "target": "api", "restart_class": "session_reconnect", "reason": "r", "duration": "1m",
               "evidence_sha256": "0".repeat(64)})
        .to_string(),
    ];
    let mut refused = 0;
    let routes: std::collections::BTreeSet<&str> = ROUTES.iter().map(|(_, route, _)| *route).collect();
    for route in routes {
        for method in METHODS {
            let of = if *method == "HEAD" { "GET" } else { method };
            let named = ROUTES.iter().find(|(m, r, _)| *m == of && *r == route).map(|(_, _, permission)| *permission);
            for body in &bodies {
                for headers in ["", "Authorization: Bearer \r\n", "Authorization: Bearer guess\r\n", "Cookie: token=x\r\nX-API-Key: x\r\n"]
                {
                    let answer = http::with_headers(w.medic.port(), method, &filled(route), headers, body);
                    let status = answer.status;
                    // The guesser is told less and less.
                    refused += usize::from(matches!(status, 401 | 429));
                    let fine = match named {
                        None => matches!(status, 400 | 404 | 405 | 429),
                        Some(Permission::Form) => (400..500).contains(&status),
                        Some(permission) if changes(permission) => matches!(status, 401 | 429),
                        Some(_) => status == 200 || status == 503 || (400..500).contains(&status),
                    };
                    assert!(fine, "{method} {route} {headers:?}: {answer:?}");
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
    assert_eq!(state(&w), before);
    for odd in ["/api/v1/../v1/pause", "//api/v1/pause", "/api/v1/pause/", "/API/V1/PAUSE", "/api/v1/%70ause", "/-/quit", "/api/v2/pause"] {
        let status = http::with_headers(w.medic.port(), "POST", odd, "", &bodies[1]).status;
        assert!(matches!(status, 401 | 403 | 404 | 405 | 429), "{odd}: {status}");
    }
    assert_eq!(state(&w), before);
    // A principal is let in all the same.
    assert_eq!(w.medic.post_as(ADMIN, "/api/v1/pause", &json!({"duration": "1m", "reason": "r"})).status, 200);
}

#[test]
fn each_role_may_what_its_row_says_and_no_more() {
    let w = World::start(false, &json!({}));
    let asked = |who: &str, path: &str| w.medic.post_as(who, path, &json!({})).status;
    for (_, route, permission) in ROUTES.iter().filter(|(_, _, p)| changes(*p) && *p != Permission::Form) {
        let path = filled(route);
        // Whoever may is told what is wrong with the empty body; reload needs none.
        let let_in = if *permission == Permission::Reload { 200 } else { 400 };
        let viewer = if *permission == Permission::Ask { let_in } else { 403 };
        assert_eq!([VIEWER, OPERATOR, ADMIN].map(|who| asked(who, &path)), [viewer, let_in, let_in], "{route}");
    }
}

#[test]
fn a_page_of_another_site_cannot_act_even_with_a_token() {
    let w = World::start(false, &json!({}));
    let body = json!({"duration": "1m", "reason": "r"}).to_string();
    let ask = |more: &str| {
        let headers = format!("Authorization: Bearer {ADMIN}\r\n{more}");
        let answer = http::with_headers(w.medic.port(), "POST", "/api/v1/pause", &headers, &body);
        (answer.status, answer.code())
    };
    let foreign = || (403, "cross_site".to_owned());
    assert_eq!(ask("Origin: http://evil.example\r\n"), foreign());
    assert_eq!(ask("Origin: null\r\n"), foreign());
    assert_eq!(ask("Sec-Fetch-Site: cross-site\r\n"), foreign());
    assert!(matches!(ask("Host: evil.example\r\n").0, 400 | 403), "two hosts are no request");
    assert_eq!(w.kinds(), [""; 0]);
    assert_eq!(ask(&format!("Origin: {}\r\nSec-Fetch-Site: same-origin\r\n", w.medic.url())).0, 200);
}

#[test]
fn a_crash_leaves_no_memory_behind() {
    let w = World::start(false, &json!({}));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", w.medic.pid())).unwrap();
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
}

#[test]
fn no_token_or_key_is_in_anything_that_is_said() {
    let key = "key-of-hangar-that-nobody-may-see";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), key).unwrap();
    let w = World::start(true, &json!({"hangar": {"api_key_file": dir.path().join("key")}, "log": {"level": "trace"}}));
    w.medic.post_as(ADMIN, "/api/v1/pause", &json!({"duration": "1m", "reason": "r"}));
    w.medic.post_as(ADMIN, "/-/reload", &json!({}));
    w.medic.post_as(VIEWER, "/api/v1/servers/api/hold", &json!({"reason": "r"}));
    let file = w.medic.config_file();
    let (_, shown, _) = crate::playbook::medic(&["check-config", file.to_str().unwrap()]);
    let (_, exported, _) = crate::playbook::medic(&["attempts", "export", "--storage.path", w.medic.data().to_str().unwrap()]);
    let said = [w.medic.log(), w.medic.metrics(), w.medic.status().to_string(), shown, exported];
    assert!(said.iter().all(|s| s.len() > 50), "each of them says something");
    for secret in [key, VIEWER, OPERATOR, ADMIN, "by the test"] {
        assert!(said.iter().all(|s| !s.contains(secret)), "{secret}");
    }
}
