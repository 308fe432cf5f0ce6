//! The status page as its answers: headers, refusals, and what it never shows.

use super::*;

/// Status, headers and body of a page.
async fn page(server: &Server, path: &str) -> (u16, reqwest::header::HeaderMap, String) {
    let response = client().get(format!("{}{path}", server.base)).send().await.unwrap();
    (response.status().as_u16(), response.headers().clone(), response.text().await.unwrap())
}

#[tokio::test]
async fn the_overview_and_an_incident_say_in_words_what_is_wrong_and_keep_upstream_text_back() {
    let server = Server::up().await;
    let (status, _, body) = page(&server, "/").await;
    assert_eq!(status, 200);
    for words in [
        "1 of 3 server is not working; the medic is at it",
        "Its process or connection died.",
        "pauses a moment",
        "href=\"incidents/api.1\"",
    ] {
        assert!(body.contains(words), "{words}: {body}");
    }
    let (status, _, body) = page(&server, "/incidents/api.1").await;
    assert_eq!(status, 200);
    for words in ["Hangar&#39;s log says: crashed", "capability_refresh (rung 1)", "no drift", "shown only with credentials"] {
        assert!(body.contains(words), "{words}: {body}");
    }
    assert!(!body.contains("password"), "{body}");
}

#[tokio::test]
async fn pages_bear_a_strict_policy_and_look_again_by_a_header_until_told_not_to() {
    let server = Server::up().await;
    for path in ["/", "/incidents/api.1", "/incidents/none", "/style.css"] {
        let (_, headers, body) = page(&server, path).await;
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(headers["x-content-type-options"] == "nosniff" && headers["cache-control"] == "no-store", "{path}");
        assert!(!headers.contains_key("set-cookie") && !body.contains("<script") && !body.contains("style="), "{path}");
    }
    for (path, refreshes) in [("/", true), ("/?refresh=off", false), ("/incidents/api.1", true), ("/incidents/api.1?refresh=off", false)] {
        let (_, headers, body) = page(&server, path).await;
        assert_eq!(headers.get("refresh").map(|v| v == "5"), refreshes.then_some(true), "{path}");
        assert!(body.contains(if refreshes { "?refresh=off\">stop" } else { "stands still" }), "{path}: {body}");
    }
}

#[tokio::test]
async fn what_cannot_be_shown_is_said_on_a_page_and_tells_no_path() {
    let server = Server::up().await;
    assert_eq!(page(&server, "/incidents/none").await.0, 404);
    assert_eq!(page(&server, "/incidents/%ff").await.0, 404);
    let evil = "GET / HTTP/1.1\r\nHost: evil.example:9923\r\nConnection: close\r\n\r\n";
    assert!(rest(&mut server.raw(evil).await).await.contains(" 403 "));
    let server = Server::bare(Fake { broken: true, ..Fake::default() }).await;
    let (status, headers, body) = page(&server, "/").await;
    assert!(status == 503 && headers["refresh"] == "5" && body.contains("The medic is starting"), "{body}");
    server.shared.set_views(server.fake.clone());
    let (status, _, body) = page(&server, "/").await;
    assert!(status == 503 && body.contains("This cannot be shown now") && !body.contains("/var/lib"), "{body}");
}

/// A form, as a browser sends it from `origin`.
async fn send(server: &Server, path: &str, origin: Option<&str>, body: &str) -> (u16, String) {
    let mut request = client().post(format!("{}{path}", server.base)).body(body.to_owned());
    request = request.header("content-type", "application/x-www-form-urlencoded");
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    answer(request).await
}

#[tokio::test]
async fn a_form_counts_only_from_here_and_only_with_a_token() {
    let server = Server::up().await;
    let here = server.base.clone();
    for path in ["/servers/api/hold", "/servers/api/resume", "/pause", "/resume"] {
        let (status, headers, body) = page(&server, path).await;
        assert!(status == 200 && !headers.contains_key("refresh"), "{path}");
        assert!(body.contains("web.principals names nobody") && !body.contains("<form"), "{path}: {body}");
        for origin in [None, Some("http://evil.example"), Some("null")] {
            let (status, body) = send(&server, path, origin, "reason=r&token=t&duration=1h").await;
            let refused = body.contains("was not sent from this page") || body.contains("another site's page cannot ask for this");
            assert!(status == 403 && refused, "{path} {origin:?}: {status} {body}");
        }
        let (status, body) = send(&server, path, Some(&here), "reason=r&token=t&duration=1h").await;
        assert!(status == 403 && body.contains("no principals are configured"), "{path}: {status} {body}");
        let (status, _) = send(&server, path, Some(&here), &format!("reason={}", "x".repeat(20_000))).await;
        assert_eq!(status, 413, "{path}");
    }
    assert_eq!(page(&server, "/incidents/none/approve").await.0, 404);
}
