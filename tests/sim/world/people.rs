//! What people ask of the medic, through the commands of its API.

use std::time::Duration;

use hangar_medic::config::{self, Overrides, Window};
use hangar_medic::engine::{Asker, Command, CommandError, Held, Reconfigure, Resume, Signal};
use hangar_medic::policy::{ApprovalAsk, HoldCause, Rung};
use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::super::check::people::Span;
use super::super::mutants::Mutant;
use super::super::plan::Blow;
use super::World;

fn asker() -> Asker {
    Asker { principal: "ann".to_owned(), role: "operator".to_owned(), reason: "because".to_owned() }
}

/// As the configuration file has them.
fn parsed(spans: &[Span]) -> Vec<Window> {
    if spans.is_empty() {
        return Vec::new();
    }
    let entry = |(n, s): (usize, &Span)| {
        let server = s.server.as_deref().unwrap_or("*");
        format!("    - {{name: w{n}, schedule: '{} * * * *', duration: {}m, match: '{server}'}}\n", s.minute, s.lasts)
    };
    let entries: String = spans.iter().enumerate().map(entry).collect();
    let yaml = format!("hangar:\n  url: http://127.0.0.1:1\npolicy:\n  maintenance:\n{entries}");
    config::parse(yaml.as_bytes(), &Overrides::default()).expect("a configuration").maintenance
}

impl World {
    pub(super) fn windows(&self, mutant: Option<Mutant>) -> Vec<Window> {
        if mutant == Some(Mutant::KeepsNoWindows) { Vec::new() } else { parsed(&self.plan.windows) }
    }

    /// Sends a command, and says in the timeline what came of it.
    fn command<T: std::fmt::Debug + Send + 'static>(&self, make: impl FnOnce(oneshot::Sender<Result<T, CommandError>>) -> Command) {
        let (reply, answer) = oneshot::channel();
        self.signal(Signal::Command(Box::new(make(reply))));
        let shared = self.shared.clone();
        #[allow(clippy::disallowed_methods, reason = "a test has no supervisor: a person who waits for an answer is a task")]
        tokio::spawn(async move {
            let Ok(answer) = answer.await else { return };
            shared.lock().say(format!("   a person is told: {answer:?}"));
        });
    }

    pub(super) fn person(&mut self, blow: Blow) {
        match blow {
            Blow::Pause(server, lasts) => {
                self.shared.lock().check.people.asked_pause.insert(server.clone());
                self.command(|reply| Command::Pause(server, SignedDuration::from_millis(lasts), asker(), reply));
            }
            Blow::Unpause => {
                self.shared.lock().check.people.asked_unpause.insert(None);
                self.command(|reply| Command::Unpause(asker(), reply));
            }
            Blow::Hold(server) => {
                self.shared.lock().check.people.asked_hold.insert(server.clone());
                self.command(|reply| Command::Hold(Held::Server(server), asker(), reply));
            }
            Blow::Resume(server) => self.resume(server),
            Blow::Look(server) => self.look(&server),
            Blow::Approve(server, role) => self.approve(&server, role),
            Blow::Reload(change) => {
                self.plan.policy = change.0;
                self.plan.windows = change.1;
                self.reload();
            }
            _ => unreachable!("nobody asks for {blow:?}"),
        }
    }

    fn resume(&mut self, server: String) {
        let mut state = self.shared.lock();
        state.check.people.asked_resume.insert(server.clone());
        state.check.people.asked_unpause.insert(Some(server.clone()));
        drop(state);
        let Asker { principal, role, reason } = asker();
        self.command(|reply| Command::Resume(Resume { held: Held::Server(server), principal, role, reason }, reply));
    }

    /// What the page shows of it now.
    fn look(&mut self, server: &str) {
        let Some(medic) = &self.medic else { return };
        let Some(standing) = medic.live.get().standings.get(server).cloned() else { return };
        if let Some(waits) = standing.approval {
            let incident = waits.evidence.get("incident_id").and_then(|id| id.as_str()).unwrap_or_default().to_owned();
            self.looked.insert(server.to_owned(), (incident, waits.evidence_sha256));
        }
    }

    fn approve(&mut self, server: &str, role: &'static str) {
        let Some((incident_id, evidence_sha256)) = self.looked.get(server).cloned() else { return };
        if role != "viewer" {
            self.shared.lock().check.people.asked_approval.insert((incident_id.clone(), evidence_sha256.clone()));
        }
        let ask = ApprovalAsk {
            approval_id: String::new(),
            incident_id,
            action: Rung::SessionReconnect,
            evidence_sha256,
            principal: "bob".to_owned(),
            role: role.to_owned(),
            reason: "compared".to_owned(),
        };
        self.command(|reply| Command::Approve(ask, reply));
    }

    /// The file is another one now; a process that begins later reads it anyway.
    fn reload(&mut self) {
        if self.medic.is_none() {
            return;
        }
        let mutant = self.shared.lock().mutant;
        let policy = mutant.map_or_else(|| self.plan.policy.clone(), |m| m.policy(self.plan.policy.clone()));
        let kept = self.shared.lock().check.wants_config(self.plan.policy.clone(), self.plan.windows.clone(), policy.clone());
        let new = Reconfigure {
            policy: if mutant == Some(Mutant::KeepsItsConfig) { kept } else { policy },
            maintenance: self.windows(mutant),
            poll_interval: Duration::from_millis(u64::try_from(self.plan.poll).expect("positive")),
            stale_after: SignedDuration::from_millis(self.plan.poll * 3),
        };
        self.command(|reply| Command::Reconfigure(Box::new(new), reply));
    }

    /// All faults have ended: somebody decides on what waits for a person.
    pub(super) fn tend(&mut self) {
        let (held, paused) = {
            let mut state = self.shared.lock();
            state.check.people.tend = true;
            let held =
                |(id, cause): (&String, &HoldCause)| matches!(cause, HoldCause::Person | HoldCause::TookHangarDown).then(|| id.clone());
            (state.check.orders.iter().filter_map(held).collect::<Vec<_>>(), state.check.people.standing_pauses())
        };
        for id in held {
            self.resume(id);
        }
        for server in paused {
            match server {
                None => self.person(Blow::Unpause),
                Some(id) => self.resume(id),
            }
        }
        let Some(medic) = &self.medic else { return };
        let waiting: Vec<String> = medic
            .live
            .get()
            .standings
            .iter()
            .filter(|(_, s)| s.approval.as_ref().is_some_and(|a| a.approved.is_none()))
            .map(|(id, _)| id.clone())
            .collect();
        for id in waiting {
            self.look(&id);
            self.approve(&id, "admin");
        }
    }
}
