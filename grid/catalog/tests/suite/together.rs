//! Many callers at once; the order of flush and answer.

use super::bed::Bed;
use super::{Env, at, ok, refused};
use kuroshio_catalog::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex, mpsc};

const THREADS: usize = 8;

/// Runs a job on several threads, over one or (where the back end can) two services.
fn in_threads(bed: &dyn Bed, job: impl Fn(&Env, usize) + Sync) -> Env {
    let first = bed.env();
    let second = bed.second();
    std::thread::scope(|s| {
        for i in 0..THREADS {
            let env = if i % 2 == 0 {
                &first
            } else {
                second.as_ref().unwrap_or(&first)
            };
            let job = &job;
            s.spawn(move || job(env, i));
        }
    });
    first
}

pub fn many_threads_make_names(bed: &dyn Bed) {
    {
        let env = bed.env();
        env.mkdir("/d");
        env.site("s", &["n1", "n2"]);
    }
    let winners = Mutex::new(0);
    let env = in_threads(bed, |env, i| {
        let me = Caller::user(&format!("u{}", i / 2), &["together"]);
        for n in 0..20 {
            env.create(&format!("/d/own-{i}-{n}"));
            // One of all gets it.
            let shared = Create {
                place: at(&format!("/d/all-{n}")),
                mode: 0o644,
                umask: 0,
                exclusive: true,
                open: false,
            };
            match env.call(shared) {
                Ok(_) => *winners.lock().unwrap() += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::Exists, "{e}"),
            }
            if n % 4 == 0 {
                env.put(&format!("/d/put-{n}"), 100, &["n1"]);
                env.chmod("/d", 0o777);
                ok(env.put_by(&me, &format!("/d/mine-{i}-{n}"), 3, &["n2"]));
            }
            if n % 3 == 0 {
                ok(env.unlink(&format!("/d/own-{i}-{n}")));
            }
        }
    });
    assert_eq!(*winners.lock().unwrap(), 20);
    let names = env.names("/d", 1000);
    assert_eq!(
        names.iter().filter(|n| n.starts_with("own")).count(),
        THREADS * 13
    );
    assert_eq!(names.iter().filter(|n| n.starts_with("put")).count(), 5);
    assert_eq!(env.user_usage("u0"), (10, 30));
    env.reap();
    env.invariants_hold();
}

pub fn moves_make_no_loop(bed: &dyn Bed) {
    {
        let env = bed.env();
        for d in ["/a", "/b", "/c", "/a/x", "/b/y", "/c/z"] {
            env.mkdir(d);
        }
    }
    let env = in_threads(bed, |env, i| {
        let dirs = ["/a", "/b", "/c"];
        let numbers: Vec<Ino> = dirs
            .iter()
            .filter_map(|d| env.stat(d).ok())
            .map(|a| a.ino)
            .collect();
        for n in 0..30 {
            let (from, to) = ((i + n) % 3, (i + n * 7 + 1) % 3);
            // By number: wherever it is now, its child is moved below another, which may be below it.
            if let (Some(from), Some(to)) = (numbers.get(from), numbers.get(to)) {
                for child in ["x", "y", "z", "a", "b", "c"] {
                    let mv = Rename {
                        from: Place::at(*from, child),
                        to: Place::at(*to, child),
                        mode: RenameMode::Replace,
                    };
                    if let Err(e) = env.call(mv) {
                        use ErrorKind as K;
                        assert!(
                            matches!(e.kind(), K::NotFound | K::Invalid | K::NotEmpty | K::Exists),
                            "{:?} {e}",
                            e.kind()
                        );
                    }
                }
            }
            let name = ["a", "b", "c"][(i + n) % 3];
            if let Some(to) = numbers.get((i + n + 1) % 3) {
                let mv = Rename {
                    from: at(name),
                    to: Place::at(*to, name),
                    mode: RenameMode::NoReplace,
                };
                if env.call(mv).is_ok() {
                    // Back, so that there is something at the top.
                    let back = Rename {
                        from: Place::at(*to, name),
                        to: at(name),
                        mode: RenameMode::NoReplace,
                    };
                    let _ = env.call(back);
                }
            }
        }
    });
    env.invariants_hold();
}

pub fn the_flush_comes_first(bed: &dyn Bed) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let heard = log.clone();
    let trace: Trace = Arc::new(move |e| heard.lock().unwrap().push(e));
    let options = Options {
        trace: Some(trace),
        writers: 1,
        ..Options::default()
    };
    let env = Env::new(bed.open_with(options));
    std::thread::scope(|s| {
        for i in 0..THREADS {
            let env = &env;
            s.spawn(move || (0..25).for_each(|n| drop(env.create(&format!("/{i}-{n}")))));
        }
    });
    refused(env.unlink("/none"), ErrorKind::NotFound);
    drop(env);
    let log = log.lock().unwrap();
    let mut durable = 0;
    let mut answered = 0;
    let mut largest = 0;
    for event in log.iter() {
        match event {
            TraceEvent::Begin { operations } => {
                assert_eq!(
                    durable, 0,
                    "everything durable was answered before the next transaction"
                );
                largest = largest.max(*operations);
            }
            TraceEvent::Durable { operations } => durable = *operations,
            TraceEvent::Answer => {
                assert!(durable > 0, "answered before it was durable");
                durable -= 1;
                answered += 1;
            }
        }
    }
    assert_eq!(answered, THREADS * 25 + 1);
    assert!(largest > 1, "callers that wait together share a flush");
}

pub fn two_services_on_one_catalog(bed: &dyn Bed) {
    let env = bed.env();
    let Some(other) = bed.second() else { return };
    env.mkdir("/d");
    assert_eq!(
        ok(other.stat("/d")).ino,
        ok(env.stat("/d")).ino,
        "what one was told, the other sees"
    );
    env.site("s", &["n1"]);
    // Numbers of two services never meet.
    let mut seen = BTreeSet::new();
    for i in 0..50 {
        assert!(seen.insert(env.create(&format!("/d/a{i}")).ino));
        assert!(seen.insert(other.put(&format!("/d/b{i}"), 1, &["n1"]).ino));
    }
    assert_eq!(env.names("/d", 7).len(), 100);
    // A draft of one is not another's, but what it wrote may be published by the owner.
    let draft = ok(env.call(OpenWrite { place: at("/d/a0") }));
    let user = Caller::user("u", &[]);
    let change = super::commit(draft, vec![super::fragment(0, 5, &["n1"])]);
    refused(other.by(&user, change.clone()), ErrorKind::Access);
    assert_eq!(ok(other.call(change)).size, 5);
    assert_eq!(ok(env.stat("/d/a0")).size, 5);
    // One goes, the other goes on.
    drop(other);
    env.create("/d/last");
    env.invariants_hold();
}

pub fn a_queue_of_changes(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    let (tx, rx) = mpsc::channel();
    for n in 0..300 {
        let tx = tx.clone();
        // Every third is refused: it must not take the others of its batch with it.
        let name = if n % 3 == 0 {
            "/d/again".to_owned()
        } else {
            format!("/d/{n}")
        };
        let op = Create {
            place: at(&name),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        };
        env.catalog.begin(&env.admin, op, move |answer| {
            tx.send((n, answer.map_err(|e| e.kind()))).unwrap()
        });
    }
    drop(tx);
    let answers: Vec<_> = rx.iter().collect();
    assert_eq!(answers.len(), 300, "each is answered once");
    let refused = answers
        .iter()
        .filter(|(_, a)| matches!(a, Err(ErrorKind::Exists)))
        .count();
    let made = answers.iter().filter(|(_, a)| a.is_ok()).count();
    assert_eq!((refused, made), (99, 201));
    assert_eq!(env.names("/d", 1000).len(), 201);
    // What waits when the catalog is dropped is answered too.
    let (tx, rx) = mpsc::channel();
    for n in 0..50 {
        let tx = tx.clone();
        let op = MakeDir {
            place: at(&format!("/d/late{n}")),
            mode: 0o755,
            umask: 0,
        };
        env.catalog
            .begin(&env.admin, op, move |answer| tx.send(answer.is_ok()).unwrap());
    }
    drop((tx, env));
    assert_eq!(rx.iter().filter(|made| *made).count(), 50);
}

/// Two callers at the same moment, over two services where the back end can have them, many times.
fn race(bed: &dyn Bed, rounds: usize, one: impl Fn(&Env, usize) + Sync, two: impl Fn(&Env, usize) + Sync) {
    let first = bed.env();
    let second = bed.second();
    let barrier = Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            (0..rounds).for_each(|n| {
                barrier.wait();
                one(&first, n);
            });
        });
        s.spawn(|| {
            (0..rounds).for_each(|n| {
                barrier.wait();
                two(second.as_ref().unwrap_or(&first), n);
            });
        });
    });
}

pub fn decisions_rest_on_what_is_locked(bed: &dyn Bed) {
    const ROUNDS: usize = 60;
    let objects: Vec<ObjectId> = {
        let env = bed.env();
        env.site("s", &["n1", "n2", "n3"]);
        env.site("t", &[]);
        ok(env.call(PutRoute {
            from: "s".into(),
            to: "t".into(),
            capacity_bps: 100,
        }));
        let made: Vec<ObjectId> = (0..ROUNDS)
            .map(|n| {
                env.mkdir(&format!("/d{n}"));
                env.put(&format!("/f{n}"), 10, &["n1", "n2"]);
                env.layout(&format!("/f{n}")).fragments[0].object
            })
            .collect();
        let job = |object: &ObjectId| NewJob {
            kind: JobKind::Replicate,
            object: *object,
            source: None,
            destination: Some("n3".into()),
            priority: 0,
        };
        ok(env.call(AddJobs {
            jobs: made.iter().map(job).collect(),
        }));
        made
    };
    let claimed = Mutex::new(Vec::new());
    let step = |env: &Env, n: usize, node: &str, late: bool| {
        // Each removes one of two copies: one of them must be refused.
        let remove = RemoveReplica {
            object: objects[n],
            node: node.into(),
            below: true,
        };
        if let Err(e) = env.call(remove) {
            assert_eq!(e.kind(), ErrorKind::LastReplica, "{e}");
        }
        // One removes a directory while the other makes a name in it.
        let done = if late {
            env.call(RemoveDir {
                place: at(&format!("/d{n}")),
            })
        } else {
            let place = at(&format!("/d{n}/x"));
            env.call(Create {
                place,
                mode: 0o644,
                umask: 0,
                exclusive: true,
                open: false,
            })
            .map(drop)
        };
        if let Err(e) = done {
            assert!(
                matches!(e.kind(), ErrorKind::NotEmpty | ErrorKind::NotFound),
                "{e}"
            );
        }
        // Both want more than half of a route.
        let lease = TakeLease {
            from: "s".into(),
            to: "t".into(),
            holder: format!("{node}-{n}"),
            rate_bps: 60,
            least_bps: 60,
            ttl_ms: 60_000,
        };
        if ok_or(env.call(lease), ErrorKind::Busy) {
            let leased = ok(env.call(ListRoutes {}))[0].leased_bps;
            assert!(leased <= 100, "{leased}");
            ok(env.call(DropLease {
                from: "s".into(),
                to: "t".into(),
                holder: format!("{node}-{n}"),
            }));
        }
        // Both claim a job.
        let jobs = ok(env.call(ClaimJobs {
            worker: node.into(),
            limit: 1,
            claim_ms: 60_000,
        }));
        claimed.lock().unwrap().extend(jobs.iter().map(|j| j.id));
    };
    race(
        bed,
        ROUNDS,
        |env, n| step(env, n, "n1", false),
        |env, n| step(env, n, "n2", true),
    );
    let env = bed.env();
    for (n, object) in objects.iter().enumerate() {
        let replicas = ok(env.call(GetFragment { object: *object })).replicas;
        let valid = replicas.iter().filter(|r| r.state == ReplicaState::Valid).count();
        assert_eq!(valid, 1, "file {n}");
    }
    let mut jobs = claimed.into_inner().unwrap();
    jobs.sort();
    let all = jobs.len();
    jobs.dedup();
    assert_eq!((all, jobs.len()), (ROUNDS, ROUNDS), "each job is claimed once");
    // Two copies become valid at the same moment: what is noted of them must be both.
    ok(env.call(SetCopies {
        place: at("/"),
        rule: CopyRule::Count(2),
    }));
    drop(env);
    let add = |env: &Env, n: usize, node: &str| {
        let name = format!("/g{n}");
        let state = ReplicaState::Valid;
        if node == "n2" {
            env.put(&name, 10, &["n1"]);
        }
        let object = loop {
            match env.call(Where { place: at(&name) }) {
                Ok(layout) => break layout.fragments[0].object,
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
            }
        };
        ok(env.call(AddReplica {
            object,
            node: node.into(),
        }));
        ok(env.call(SetReplica {
            object,
            node: node.into(),
            state,
            digest: Some(super::digest(0, 10)),
        }));
    };
    race(
        bed,
        ROUNDS,
        |env, n| add(env, n, "n2"),
        |env, n| add(env, n, "n3"),
    );
    let env = bed.env();
    assert_eq!(
        ok(env.call(ListOffCopies {
            balance: CopyBalance::Surplus,
            after: None,
            limit: 1000
        }))
        .len(),
        ROUNDS
    );
    env.invariants_hold();
}

/// Whether it was granted; refusals of another kind are failures.
fn ok_or<T>(answer: Result<T, CatalogError>, kind: ErrorKind) -> bool {
    match answer {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.kind(), kind, "{e}");
            false
        }
    }
}
