//! Durable jobs.

use super::bed::Bed;
use super::{Env, at, ok, refused};
use kuroshio_catalog::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

fn object(env: &Env, path: &str) -> ObjectId {
    env.layout(path).fragments[0].object
}

fn job(object: ObjectId, destination: &str, priority: i32) -> NewJob {
    NewJob {
        kind: JobKind::Replicate,
        object,
        source: None,
        destination: Some(destination.into()),
        priority,
    }
}

fn claim(env: &Env, worker: &str, limit: u32) -> Vec<u64> {
    let jobs = ok(env.call(ClaimJobs {
        worker: worker.into(),
        limit,
        claim_ms: 1000,
    }));
    assert!(
        jobs.iter()
            .all(|j| j.state == JobState::Running && j.worker.as_deref() == Some(worker))
    );
    jobs.iter().map(|j| j.id.0).collect()
}

pub fn claimed_by_priority(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2", "n3"]);
    env.put("/a", 10, &["n1"]);
    env.put("/b", 20, &["n1"]);
    let (a, b) = (object(&env, "/a"), object(&env, "/b"));
    let made = ok(env.call(AddJobs {
        jobs: vec![job(a, "n2", 0), job(b, "n2", 5), job(a, "n3", 5)],
    }));
    assert_eq!(
        made.iter().map(|j| j.total_bytes).collect::<Vec<_>>(),
        [10, 20, 10]
    );
    let ids: Vec<u64> = made.iter().map(|j| j.id.0).collect();
    assert!(ids.windows(2).all(|w| w[0] < w[1]));
    let again = ok(env.call(AddJobs {
        jobs: vec![job(b, "n2", 9)],
    }));
    assert_eq!(again[0].id.0, ids[1], "an open job is not made twice");
    assert_eq!(claim(&env, "w1", 2), [ids[1], ids[2]]);
    assert_eq!(claim(&env, "w2", 2), [ids[0]]);
    assert!(claim(&env, "w2", 2).is_empty());
    let progress = |id: u64, worker: &str, done_bytes| {
        ok(env.call(JobProgress {
            id: JobId(id),
            worker: worker.into(),
            done_bytes,
            claim_ms: 1000,
        }))
    };
    assert_eq!(progress(ids[1], "w1", 7).done_bytes, 7);
    assert_eq!(
        progress(ids[1], "w2", 9).worker.as_deref(),
        Some("w1"),
        "not another's"
    );
    let finish = |id: u64, worker: &str, state, error: Option<&str>| {
        let error = error.map(Into::into);
        env.call(FinishJob {
            id: JobId(id),
            worker: worker.into(),
            state,
            error,
        })
    };
    refused(finish(ids[1], "w2", JobState::Done, None), ErrorKind::Stale);
    refused(
        finish(ids[1], "w1", JobState::Cancelled, None),
        ErrorKind::Invalid,
    );
    let ended = ok(finish(ids[1], "w1", JobState::Done, None));
    assert_eq!(
        (ended.state, ended.done_bytes, ended.attempts),
        (JobState::Done, 20, 1)
    );
    refused(finish(ids[1], "w1", JobState::Done, None), ErrorKind::Stale);
    ok(finish(ids[2], "w1", JobState::Queued, Some("the route is down")));
    assert_eq!(claim(&env, "w2", 9), [ids[2]]);
    // They are there after a restart.
    drop(env);
    let env = bed.env();
    let list = |state| {
        let filter = JobFilter { state, ino: None };
        ok(env.call(ListJobs {
            filter,
            after: None,
            limit: 100,
        }))
    };
    let all = list(None);
    assert_eq!(all.iter().map(|j| j.id.0).collect::<Vec<_>>(), ids);
    assert_eq!(
        (all[2].attempts, all[2].error.as_deref()),
        (2, Some("the route is down"))
    );
    assert_eq!(list(Some(JobState::Running)).len(), 2);
    let of_b = JobFilter {
        state: None,
        ino: Some(b.ino),
    };
    assert_eq!(
        ok(env.call(ListJobs {
            filter: of_b,
            after: None,
            limit: 9
        }))
        .len(),
        1
    );
    assert_eq!(
        ok(env.call(PruneJobs {
            before: Timestamp(i64::MAX),
            limit: 100
        })),
        1
    );
    assert_eq!(list(None).len(), 2);
    let gone = ObjectId { fragment: 7, ..a };
    refused(
        env.call(AddJobs {
            jobs: vec![job(gone, "n2", 0)],
        }),
        ErrorKind::NotFound,
    );
    refused(
        env.call(AddJobs {
            jobs: vec![job(a, "n9", 0)],
        }),
        ErrorKind::NotFound,
    );
    refused(
        env.call(AddJobs {
            jobs: vec![job(a, "n2", 0); 1001],
        }),
        ErrorKind::Limit,
    );
}

pub fn cancelled_and_taken_over(bed: &dyn Bed) {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let clock: Clock = Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)));
    let env = Env::new(bed.open_with(Options {
        clock,
        ..Options::default()
    }));
    env.site("s", &["n1", "n2"]);
    env.put("/a", 10, &["n1"]);
    let a = object(&env, "/a");
    let id = ok(env.call(AddJobs {
        jobs: vec![job(a, "n2", 0)],
    }))[0]
        .id
        .0;
    assert_eq!(claim(&env, "w1", 1), [id]);
    now.store(999_999_999, Ordering::Relaxed);
    assert!(claim(&env, "w2", 1).is_empty());
    now.store(1_000_000_000, Ordering::Relaxed);
    assert_eq!(claim(&env, "w2", 1), [id], "the claim ended");
    let progress = ok(env.call(JobProgress {
        id: JobId(id),
        worker: "w1".into(),
        done_bytes: 5,
        claim_ms: 1000,
    }));
    assert_eq!(
        (progress.worker.as_deref(), progress.done_bytes),
        (Some("w2"), 0),
        "the first hears of it"
    );
    assert_eq!(
        ok(env.call(CancelJob { id: JobId(id) })).state,
        JobState::Cancelled
    );
    let progress = ok(env.call(JobProgress {
        id: JobId(id),
        worker: "w2".into(),
        done_bytes: 5,
        claim_ms: 1000,
    }));
    assert_eq!(progress.state, JobState::Cancelled, "the worker hears of it");
    refused(
        env.call(FinishJob {
            id: JobId(id),
            worker: "w2".into(),
            state: JobState::Done,
            error: None,
        }),
        ErrorKind::Stale,
    );
    refused(env.call(CancelJob { id: JobId(1) }), ErrorKind::NotFound);
    assert!(claim(&env, "w2", 1).is_empty());
}

pub fn of_users(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    env.mkdir("/d");
    env.chmod("/d", 0o777);
    let (ann, eve) = (Caller::user("ann", &[]), Caller::user("eve", &[]));
    ok(env.put_by(&ann, "/d/a", 10, &["n1"]));
    let a = object(&env, "/d/a");
    refused(
        env.by(
            &eve,
            AddJobs {
                jobs: vec![job(a, "n2", 0)],
            },
        ),
        ErrorKind::Access,
    );
    let id = ok(env.by(
        &ann,
        AddJobs {
            jobs: vec![job(a, "n2", 0)],
        },
    ))[0]
        .id;
    let list = |who: &Caller| {
        ok(env.by(
            who,
            ListJobs {
                filter: JobFilter::default(),
                after: None,
                limit: 10,
            },
        ))
        .len()
    };
    assert_eq!((list(&ann), list(&eve), list(&env.admin)), (1, 0, 1));
    refused(env.by(&eve, CancelJob { id }), ErrorKind::NotPermitted);
    refused(
        env.by(
            &ann,
            ClaimJobs {
                worker: "ann".into(),
                limit: 1,
                claim_ms: 1,
            },
        ),
        ErrorKind::NotPermitted,
    );
    ok(env.by(&ann, CancelJob { id }));
    assert_eq!(ok(env.call(Where { place: at("/d/a") })).fragments.len(), 1);
}

/// A service whose clock is hours ahead claims a job, takes a lease, has a file open, and dies.
pub fn a_clock_that_jumped_holds_nothing_for_long(bed: &dyn Bed) {
    const HOURS_8: i64 = 8 * 3600 * 1_000_000_000;
    let now = Arc::new(AtomicI64::new(HOURS_8));
    let clock = now.clone();
    let clock: Clock = Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)));
    let options = || Options {
        clock: clock.clone(),
        ..Options::default()
    };
    let env = Env::new(bed.open_with(options()));
    env.site("s", &["n1", "n2"]);
    env.site("t", &["n3"]);
    env.put("/a", 10, &["n1"]);
    let a = object(&env, "/a");
    let id = ok(env.call(AddJobs {
        jobs: vec![job(a, "n2", 0)],
    }))[0]
        .id
        .0;
    ok(env.call(PutRoute {
        from: "s".into(),
        to: "t".into(),
        capacity_bps: 1000,
    }));
    let take = |env: &Env, holder: &str| {
        env.call(TakeLease {
            from: "s".into(),
            to: "t".into(),
            holder: holder.into(),
            rate_bps: 1000,
            least_bps: 1,
            ttl_ms: 20,
        })
    };
    let claim = |env: &Env, worker: &str| {
        let jobs = ok(env.call(ClaimJobs {
            worker: worker.into(),
            limit: 1,
            claim_ms: 20,
        }));
        jobs.first().map(|j| j.id.0)
    };
    assert_eq!(claim(&env, "w1"), Some(id));
    ok(take(&env, "w1"));
    ok(env.call(OpenRead { place: at("/a") }));
    ok(env.call(Reap { limit: 1, ttl_ms: 20 }));
    drop(env);
    now.store(1, Ordering::Relaxed);
    let env = Env::new(bed.open_with(options()));
    assert_eq!(claim(&env, "w2"), None, "by the clock it has hours");
    refused(take(&env, "w2"), ErrorKind::Busy);
    let wait = |what: &str, reached: &mut dyn FnMut() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !reached() {
            assert!(std::time::Instant::now() < end, "not reached: {what}");
            std::thread::yield_now();
        }
    };
    wait("the job", &mut || claim(&env, "w2") == Some(id));
    wait("the route", &mut || take(&env, "w2").is_ok());
    ok(env.unlink("/a"));
    wait("the content goes", &mut || {
        ok(env.call(Reap { limit: 9, ttl_ms: 20 })) == 1
    });
}
