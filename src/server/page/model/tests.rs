use super::*;
use crate::cli::sample::{at, story};
use crate::policy::{Policy, ladder_document};
use crate::server::views::HangarView;

fn status(open: usize) -> StatusView {
    StatusView {
        version: "0.1.0".into(),
        instance: "h:8000".into(),
        mode: Mode::Act,
        started_at: at(0),
        ready: true,
        hangar: HangarView {
            url: "http://h:8000/".into(),
            version: Some("2.34.4".into()),
            reachable: true,
            last_read_at: Some(at(20)),
            process_start_time: None,
            auth: Auth::Ok,
            cannot_see: Vec::new(),
        },
        known_servers: 20_000,
        incidents_open: open,
        holds: [].into(),
        hold_orders: Vec::new(),
        pauses: Vec::new(),
        fraction_avoided_full_restart: None,
    }
}

fn open_story(n: usize, hold: Option<Hold>) -> Story {
    let (mut incident, attempts) = story(false);
    incident.mcp_server = format!("s{n}");
    incident.incident_id = format!("s{n}.1");
    incident.hold = hold;
    incident.phase = if hold.is_some() { Phase::Held } else { Phase::Acting };
    Story { incident, attempts }
}

fn overview(status: &StatusView, open: &[Story], closed: &[IncidentView]) -> String {
    let policy = Policy::default();
    let ladder = ladder_document(|rung| policy.why_not(rung));
    Index::new(status, &ladder, open, closed, Top::overview(status, at(30), true), at(30)).render().unwrap()
}

#[test]
fn what_needs_a_person_comes_first() {
    let open = [open_story(1, None), open_story(2, Some(Hold::Backoff)), open_story(3, Some(Hold::ApprovalNeeded))];
    let page = overview(&status(3), &open, &[story(true).0]);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text} in {page}"));
    assert!(at("Needs a person") < at("The medic is at work") && at("The medic is at work") < at("The medic waits"));
    assert!(page.contains("3 of 20000 servers are not working, and 1 needs a person"));
    assert!(page.contains("The medic brought it back."));
}

#[test]
fn a_page_is_bounded_however_many_are_dead() {
    let open: Vec<Story> = (0..1000).map(|n| open_story(n, Some(Hold::Storm))).collect();
    let page = overview(&status(10_000), &open, &[]);
    assert!(page.contains("9900 more are open"), "it says what is left out");
    assert!(page.len() < 200_000, "{} bytes", page.len());
}

#[test]
fn unknown_is_never_shown_as_well() {
    let mut unread = status(0);
    unread.ready = false;
    assert!(overview(&unread, &[], &[]).contains("The medic knows nothing yet"));
    let mut gone = status(0);
    gone.hangar.reachable = false;
    assert!(overview(&gone, &[], &[]).contains("Hangar cannot be read since"));
    assert!(overview(&status(0), &[], &[]).contains("No server is dead, of 20000 that are known"));
}

#[test]
fn hostile_words_stay_words() {
    let mut hostile = open_story(1, None);
    hostile.incident.why = Some("<script>alert(1)</script>\u{202e}\u{1b}[31m".into());
    hostile.attempts[0].reason = "\"><img src=x onerror=alert(1)>".into();
    hostile.attempts[0].why = None;
    let page = overview(&status(1), std::slice::from_ref(&hostile), &[]);
    let one = IncidentPage::new(&hostile.without_upstream_text(), Top::below(&status(1), at(30), None), at(30)).render().unwrap();
    for page in [page, one] {
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'), "{page}");
    }
}

#[test]
fn one_incident_tells_its_story_and_keeps_upstream_text_back() {
    let (incident, attempts) = story(false);
    let page = IncidentPage::new(&Story { incident, attempts }.without_upstream_text(), Top::below(&status(1), at(30), None), at(30));
    let page = page.render().unwrap();
    assert!(page.contains("session_reconnect") && page.contains("exposed tools") && page.contains("shown only with credentials"));
    assert!(!page.contains("hunter2"), "{page}");
}
