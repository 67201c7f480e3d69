//! Services beside each other: who hears whom, whose jobs are whose, whose turn it is.

use super::bed::Bed;
use super::{Env, ok, refused};
use kuroshio_catalog::*;

fn heard(kind: PresenceKind, name: &str, via: &str) -> Presence {
    Presence {
        kind,
        name: name.into(),
        via: via.into(),
        beat: 99,
        host: format!("host-of-{name}"),
        spool: format!("spool-of-{name}"),
        objects: 7,
        closed: true,
    }
}

fn hear(env: &Env, via: &str, nodes: &[&str]) {
    let nodes = nodes.iter().map(|n| heard(PresenceKind::Node, n, via));
    let heard: Vec<Presence> = nodes.collect();
    let count = heard.len() as u64;
    assert_eq!(ok(env.call(Hear { heard })), count);
}

pub fn records_change_with_each_hearing(bed: &dyn Bed) {
    let env = bed.env();
    let service = heard(PresenceKind::Service, "h:1", "w1");
    ok(env.call(Hear {
        heard: vec![service.clone()],
    }));
    hear(&env, "w1", &["n2", "n1"]);
    hear(&env, "w2", &["n1"]);
    let all = ok(env.call(ListPresence {}));
    let short: Vec<(&str, &str, u64)> = all
        .iter()
        .map(|p| (p.name.as_str(), p.via.as_str(), p.beat))
        .collect();
    assert_eq!(short, [("n1", "w2", 2), ("n2", "w1", 1), ("h:1", "w1", 1)]);
    assert_eq!(all[2], Presence { beat: 1, ..service });
    let forget = |beat| Forget {
        kind: PresenceKind::Service,
        name: "h:1".into(),
        beat,
    };
    ok(env.call(forget(0)));
    assert_eq!(ok(env.call(ListPresence {})).len(), 3, "heard of since");
    ok(env.call(forget(1)));
    assert_eq!(ok(env.call(ListPresence {})).len(), 2);
    let me = Caller::user("u", &["g"]);
    refused(env.by(&me, ListPresence {}), ErrorKind::NotPermitted);
    refused(env.by(&me, Hear { heard: Vec::new() }), ErrorKind::NotPermitted);
}

pub fn a_job_is_for_the_service_that_hears_its_node(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2", "n3"]);
    env.put("/f", 10, &["n1"]);
    let object = env.layout("/f").fragments[0].object;
    let job = |destination: Option<&str>| NewJob {
        kind: JobKind::Replicate,
        object,
        source: None,
        destination: destination.map(Into::into),
        priority: 0,
    };
    let made = ok(env.call(AddJobs {
        jobs: vec![job(Some("n2")), job(Some("n3")), job(None)],
    }));
    let ids: Vec<JobId> = made.iter().map(|j| j.id).collect();
    hear(&env, "w1", &["n2"]);
    hear(&env, "w2", &["n3"]);
    let claim = |worker: &str, claim_ms| {
        let jobs = ok(env.call(ClaimJobs {
            worker: worker.into(),
            limit: 10,
            claim_ms,
        }));
        jobs.iter().map(|j| j.id).collect::<Vec<_>>()
    };
    assert_eq!(
        claim("w1", 60_000),
        [ids[0], ids[2]],
        "its own node's, and what is nobody's"
    );
    assert_eq!(claim("w2", 1), [ids[1]]);
    // The node moved: its job, whose claim has ended, is for the service that hears it now.
    hear(&env, "w1", &["n3"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        assert!(claim("w2", 1).is_empty());
        let got = claim("w1", 60_000);
        if !got.is_empty() {
            assert_eq!(got, [ids[1]]);
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the claim of 1 ms ends");
        std::thread::yield_now();
    }
    // Nobody hears a node that is down: anybody ends its jobs.
    ok(env.call(FinishJob {
        id: ids[1],
        worker: "w1".into(),
        state: JobState::Queued,
        error: None,
    }));
    assert!(claim("w2", 1000).is_empty());
    ok(env.call(SetNodeState {
        node: "n3".into(),
        state: NodeState::Down,
    }));
    assert_eq!(claim("w2", 60_000), [ids[1]]);
}

pub fn one_has_the_turn(bed: &dyn Bed) {
    let env = bed.env();
    let ask = |env: &Env, holder: &str, stale: Option<u64>| {
        ok(env.call(TakeTurn {
            task: "t".into(),
            holder: holder.into(),
            stale,
        }))
    };
    let turn = |holder: &str, beat| Turn {
        holder: holder.into(),
        beat,
    };
    assert_eq!(ask(&env, "a", None), turn("a", 1));
    assert_eq!(ask(&env, "b", None), turn("a", 1));
    assert_eq!(ask(&env, "a", None), turn("a", 2), "renewed");
    assert_eq!(ask(&env, "b", Some(1)), turn("a", 2), "it was renewed since");
    assert_eq!(ask(&env, "b", Some(2)), turn("b", 3), "it stood still");
    assert_eq!(ask(&env, "a", None), turn("b", 3));
    // Many that saw the same: one gets it.
    let envs: Vec<Env> = (0..4)
        .map(|_| bed.second().unwrap_or_else(|| Env::new(env.catalog.clone())))
        .collect();
    let holders: Vec<String> = std::thread::scope(|s| {
        let threads: Vec<_> = envs
            .iter()
            .enumerate()
            .map(|(i, env)| {
                let ask = &ask;
                s.spawn(move || ask(env, &format!("w{i}"), Some(3)))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap().holder).collect()
    });
    let last = ask(&env, "nobody", None);
    assert_eq!(last.beat, 4, "taken once: {holders:?}");
    assert_eq!(holders.iter().filter(|h| **h == last.holder).count(), 4);
}
