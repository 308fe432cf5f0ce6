use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::*;

/// A memory that outlives guards, and can be made to fail.
#[derive(Default)]
struct Memory {
    values: Mutex<BTreeMap<String, Value>>,
    full: AtomicBool,
}

impl AuthMemory for Memory {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>> {
        Box::pin(async move { Ok(self.values.lock().unwrap().get(key).cloned()) })
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move {
            if self.full.load(Ordering::SeqCst) {
                return Err(MemoryError("disk full".to_owned()));
            }
            self.values.lock().unwrap().insert(key.to_owned(), value);
            Ok(())
        })
    }
}

/// One Hangar's worth of world: a clock, a key file, a memory.
struct World {
    seconds: Arc<AtomicI64>,
    memory: Arc<Memory>,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { seconds: Arc::default(), memory: Arc::default(), dir: tempfile::tempdir().unwrap() };
        world.write_key("key-one\n");
        world
    }

    fn write_key(&self, key: &str) {
        std::fs::write(self.dir.path().join("key"), key).unwrap();
    }

    /// A guard as a new process makes it.
    fn start(&self) -> AuthGuard {
        let seconds = Arc::clone(&self.seconds);
        let clock: Clock = Arc::new(move || Timestamp::from_second(1_800_000_000 + seconds.load(Ordering::SeqCst)).unwrap());
        AuthGuard::new("h", Some(self.dir.path().join("key")), Arc::clone(&self.memory) as Arc<dyn AuthMemory>, clock)
    }

    fn sleep(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

/// One call; true if it was sent.
async fn call(guard: &AuthGuard, verdict: Verdict) -> bool {
    match guard.admit().await {
        Ok(leave) => {
            guard.settle(leave, verdict).await;
            true
        }
        Err(_) => false,
    }
}

/// How many of `n` calls are sent when Hangar answers 401 to each.
async fn refused(guard: &AuthGuard, n: usize) -> usize {
    let mut sent = 0;
    for _ in 0..n {
        sent += usize::from(call(guard, Verdict::Refused).await);
    }
    sent
}

#[tokio::test]
async fn a_refused_key_is_tried_twice_and_then_once_per_15_minutes() {
    let world = World::new();
    let guard = world.start();
    assert_eq!(guard.state().auth, Auth::Unknown);
    assert_eq!(refused(&guard, 9).await, 2);
    assert_eq!((guard.state().auth, guard.state().consecutive_401), (Auth::Refused, 2));
    assert_eq!(guard.state().until, Some(Timestamp::from_second(1_800_000_900).unwrap()));
    world.sleep(899);
    assert_eq!(refused(&guard, 3).await, 0);
    world.sleep(1);
    assert_eq!(refused(&guard, 3).await, 1);
    world.sleep(900);
    assert!(call(&guard, Verdict::LetIn).await);
    assert_eq!((guard.state().auth, guard.state().until), (Auth::Ok, None));
}

#[tokio::test]
async fn restarts_do_not_buy_more_tries() {
    let world = World::new();
    assert_eq!(refused(&world.start(), 1).await, 1);
    assert_eq!(refused(&world.start(), 5).await, 1);
    for _ in 0..5 {
        assert_eq!(refused(&world.start(), 5).await, 0);
    }
    world.sleep(900);
    assert_eq!(refused(&world.start(), 5).await, 1);
    assert_eq!(refused(&world.start(), 5).await, 0);
}

#[tokio::test]
async fn a_crash_between_the_try_and_its_answer_counts_as_a_try() {
    let world = World::new();
    for tries in 0..5 {
        let guard = world.start();
        let sent = guard.admit().await.is_ok();
        assert_eq!(sent, tries < 2, "the process dies here, with the try under way");
    }
}

#[tokio::test]
async fn a_changed_key_file_ends_the_rest_and_a_touched_one_does_not() {
    let world = World::new();
    let guard = world.start();
    assert_eq!(refused(&guard, 3).await, 2);
    world.write_key("  key-one\n\n");
    assert_eq!(refused(&guard, 3).await, 0, "the same key");
    assert!(!guard.look().await);
    world.write_key("key-two");
    assert!(guard.look().await, "seen without a call");
    assert_eq!(guard.state().until, None);
    assert_eq!(refused(&guard, 3).await, 2);
    world.write_key("key-three");
    assert!(call(&world.start(), Verdict::LetIn).await, "seen by a new process too");
}

#[tokio::test]
async fn a_lock_out_is_waited_out_whatever_key_comes() {
    let world = World::new();
    let guard = world.start();
    let until = Timestamp::from_second(1_800_000_301).unwrap();
    assert!(call(&guard, Verdict::LockedOut(until)).await);
    world.write_key("key-two");
    for guard in [&guard, &world.start()] {
        assert_eq!(guard.admit().await.err(), Some(AuthFault::LockedOut { until }));
        assert_eq!((guard.state().auth, guard.state().until), (Auth::Refused, Some(until)));
    }
    world.sleep(301);
    assert!(call(&guard, Verdict::LetIn).await);
    assert_eq!(guard.state().auth, Auth::Ok);
}

#[tokio::test]
async fn only_401s_in_a_row_count() {
    let world = World::new();
    let guard = world.start();
    for _ in 0..5 {
        assert!(call(&guard, Verdict::Refused).await);
        assert!(call(&guard, Verdict::LetIn).await);
    }
    assert!(call(&guard, Verdict::Refused).await);
    assert!(call(&guard, Verdict::Unclear).await, "a time-out says nothing of the key");
    assert!(call(&guard, Verdict::Refused).await);
    assert!(!call(&guard, Verdict::LetIn).await);
}

#[tokio::test]
async fn tries_go_one_by_one_until_the_key_is_proved() {
    let world = World::new();
    let guard = world.start();
    let first = guard.admit().await.unwrap();
    let mut second = Box::pin(guard.admit());
    assert!(futures_util::poll!(&mut second).is_pending());
    tokio::time::timeout(std::time::Duration::from_millis(50), &mut second).await.err().unwrap();
    guard.settle(first, Verdict::Refused).await;
    let second = second.await.unwrap();
    let third = guard.admit();
    guard.settle(second, Verdict::Refused).await;
    assert!(matches!(third.await, Err(AuthFault::Held { consecutive_401: 2, .. })));

    world.write_key("key-two");
    assert!(call(&guard, Verdict::LetIn).await);
    let (a, b) = (guard.admit().await.unwrap(), guard.admit().await.unwrap());
    guard.settle(a, Verdict::Refused).await;
    guard.settle(b, Verdict::Refused).await;
    assert!(!call(&guard, Verdict::LetIn).await, "both were under way; both count");
}

#[tokio::test]
async fn a_dropped_call_frees_the_gate() {
    let world = World::new();
    let guard = world.start();
    drop(guard.admit().await.unwrap());
    assert!(call(&guard, Verdict::LetIn).await);
}

#[tokio::test]
async fn nothing_is_tried_that_a_restart_would_forget() {
    let world = World::new();
    let guard = world.start();
    world.memory.full.store(true, Ordering::SeqCst);
    assert!(matches!(guard.admit().await, Err(AuthFault::MemoryUnusable { .. })));
    world.memory.full.store(false, Ordering::SeqCst);
    let leave = guard.admit().await.unwrap();
    world.memory.full.store(true, Ordering::SeqCst);
    guard.settle(leave, Verdict::Refused).await;
    assert!(matches!(guard.admit().await, Err(AuthFault::MemoryUnusable { .. })), "the 401 is not saved yet");
    world.memory.full.store(false, Ordering::SeqCst);
    assert_eq!(refused(&guard, 3).await, 1);
    world.memory.values.lock().unwrap().insert("hangar_auth:h".to_owned(), Value::from("nonsense"));
    assert_eq!(refused(&world.start(), 3).await, 0, "a memory that cannot be read may have been a refusal");
}

#[tokio::test]
async fn a_proved_key_needs_no_memory_and_no_queue() {
    let world = World::new();
    let guard = world.start();
    assert!(call(&guard, Verdict::LetIn).await);
    world.memory.full.store(true, Ordering::SeqCst);
    let under_way = guard.admit().await.unwrap();
    assert!(call(&guard, Verdict::LetIn).await);
    guard.settle(under_way, Verdict::LetIn).await;
    assert_eq!(guard.state().auth, Auth::Ok);
}

#[tokio::test]
async fn an_unusable_key_file_sends_nothing_and_never_shows_its_content() {
    let world = World::new();
    let guard = world.start();
    for bad in ["", "\n \n", "two\nlines", "umlaut-\u{e4}", &"x".repeat(KEY_MAX + 1)] {
        world.write_key(bad);
        let Err(fault) = guard.admit().await else { panic!("{bad}") };
        assert!(matches!(fault, AuthFault::KeyUnusable { .. }) && !fault.to_string().contains("umlaut"));
        assert_eq!(guard.state().auth, Auth::Refused);
    }
    std::fs::remove_file(world.dir.path().join("key")).unwrap();
    assert!(matches!(guard.admit().await, Err(AuthFault::KeyUnusable { .. })));
    world.write_key("key-one");
    let leave = guard.admit().await.unwrap();
    assert_eq!(leave.key.as_ref().unwrap(), "key-one");
    assert!(!format!("{:?}", leave.key).contains("key-one"));
}

#[tokio::test]
async fn a_clock_that_goes_back_never_lengthens_the_rest() {
    let world = World::new();
    assert_eq!(refused(&world.start(), 2).await, 2);
    world.sleep(-1_000_000);
    let guard = world.start();
    assert_eq!(refused(&guard, 1).await, 0);
    world.sleep(900);
    assert_eq!(refused(&guard, 1).await, 1);
}
