use super::place_tests::fragment;
use super::*;
use crate::plan::Route;
use crate::sim::Random;
use crate::units::{BitRate, PicoTime, Ratio};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use proptest::prelude::*;

fn at(secs: u64) -> PicoTime {
    PicoTime::from_secs(secs)
}

fn route(mbps: u32) -> Option<Route> {
    Some(Route {
        capacity: BitRate::from_mbps(mbps),
        headroom: Ratio::ZERO,
    })
}

fn item(inode: u64, from: &[u32], to: u32) -> JobItem {
    JobItem {
        fragment: fragment(inode),
        range: 0..1_000_000,
        sources: from.iter().map(|n| NodeId(*n)).collect(),
        to: NodeId(to),
    }
}

/// Nodes 1.. at site 1 and 11.. at site 2.
fn planner(config: PlannerConfig, mbps: u32) -> Planner {
    let mut p = Planner::new(config, at(0));
    for n in 1..=4 {
        p.set_node(NodeId(n), SiteId(1), DiskLimits::default())
            .expect("node");
        p.set_node(NodeId(n + 10), SiteId(2), DiskLimits::default())
            .expect("node");
    }
    p.set_route(SiteId(1), SiteId(2), route(mbps));
    p
}

fn one_per_node() -> PlannerConfig {
    PlannerConfig {
        max_per_node: 1,
        ..PlannerConfig::default()
    }
}

/// Everything to be done, one word each; rates in Mbit/s.
fn told(p: &mut Planner, now: u64) -> String {
    let mut out = Vec::new();
    while let Some(change) = p.poll(at(now)) {
        let mbps = |r: BitRate| format!("{}M", r.bps() / 1_000_000);
        out.push(match change {
            Change::Start(t) => {
                let (id, job, item, streams) = (t.id.0, t.job.0, t.item.0, t.streams);
                format!(
                    "start#{id} j{job}i{item} {}>{} {streams}x {}",
                    t.source.0,
                    t.to.0,
                    mbps(t.rate)
                )
            }
            Change::Rate(id, Some(rate)) => format!("rate#{} {}", id.0, mbps(rate)),
            Change::Rate(id, None) => format!("pause#{}", id.0),
            Change::Stop(id) => format!("stop#{}", id.0),
            Change::Finished(job) => format!("end j{}", job.0),
        });
    }
    out.join(", ")
}

/// The paper's replication: three node pairs through one route.
#[test]
fn three_pairs_share_a_route() {
    let mut p = planner(
        PlannerConfig {
            stream_max: Some(BitRate::from_mbps(100)),
            ..one_per_node()
        },
        893,
    );
    let items = (1..=6u32)
        .map(|i| item(u64::from(i), &[1 + i % 3], 11 + i % 3))
        .collect();
    p.add_job(JobId(1), 1, items).expect("job");
    assert_eq!(
        told(&mut p, 0),
        "start#0 j1i2 1>11 3x 297M, start#1 j1i0 2>12 3x 297M, start#2 j1i1 3>13 3x 297M"
    );
    p.ended(TransferId(1), Ended::Done, at(1));
    assert_eq!(told(&mut p, 1), "start#3 j1i3 2>12 3x 297M");
    for n in [0, 2, 3] {
        p.ended(TransferId(n), Ended::Done, at(2));
    }
    assert_eq!(
        told(&mut p, 2),
        "start#4 j1i5 1>11 5x 446M, start#5 j1i4 3>13 5x 446M"
    );
    p.ended(TransferId(4), Ended::Done, at(3));
    assert_eq!(told(&mut p, 3), "rate#5 800M", "eight streams of 100M at most");
    p.ended(TransferId(5), Ended::Done, at(4));
    assert_eq!(told(&mut p, 4), "end j1");
    let view = p.view(JobId(1)).expect("job");
    assert_eq!(
        (view.done, view.done_bytes, view.bytes),
        (6, 6_000_000, 6_000_000)
    );
}

#[test]
fn jobs_share_by_weight_whatever_their_transfers() {
    let mut p = planner(PlannerConfig::default(), 900);
    let many = (1..=3u32).map(|i| item(u64::from(i), &[i], 10 + i)).collect();
    p.add_job(JobId(1), 1, many).expect("job");
    p.add_job(JobId(2), 2, alloc::vec![item(9, &[4], 14)])
        .expect("job");
    let mut sum: BTreeMap<JobId, u64> = BTreeMap::new();
    while let Some(change) = p.poll(at(0)) {
        if let Change::Start(t) = change {
            *sum.entry(t.job).or_default() += t.rate.bps() / 1_000_000;
        }
    }
    // The three of the first job have half of what the one of the second has, whose weight is twice as much.
    assert_eq!(sum, BTreeMap::from([(JobId(1), 300), (JobId(2), 600)]));
    p.set_weight(JobId(2), 1).expect("weight");
    assert_eq!(
        told(&mut p, 1),
        "rate#1 450M, rate#0 150M, rate#2 150M, rate#3 150M"
    );
    p.cancel(JobId(2)).expect("job");
    assert_eq!(told(&mut p, 2), "stop#1, rate#0 300M, rate#2 300M, rate#3 300M");
    assert_eq!(p.set_weight(JobId(2), 1), Err(PlannerError::UnknownJob(JobId(2))));
    p.ended(TransferId(1), Ended::Done, at(3));
    assert_eq!(told(&mut p, 3), "", "a stopped transfer is forgotten");
}

#[test]
fn a_slow_disk_leaves_the_route_to_others() {
    let mut p = planner(one_per_node(), 900);
    let slow = DiskLimits {
        read: Some(BitRate::from_mbps(50)),
        write: None,
    };
    p.set_node(NodeId(1), SiteId(1), slow).expect("node");
    let items = [(1, 11), (2, 12)].map(|(from, to)| item(u64::from(from), &[from], to));
    p.add_job(JobId(1), 1, items.to_vec()).expect("job");
    assert_eq!(
        told(&mut p, 0),
        "start#0 j1i0 1>11 1x 50M, start#1 j1i1 2>12 1x 850M"
    );
    // The route falls away, then comes back narrower.
    p.set_route(SiteId(1), SiteId(2), route(40));
    assert_eq!(told(&mut p, 1), "rate#0 20M, rate#1 20M");
    p.set_route(SiteId(1), SiteId(2), None);
    assert_eq!(told(&mut p, 2), "rate#0 50M, rate#1 18446744073709M");
}

#[test]
fn a_failed_item_tries_the_next_source_and_then_gives_up() {
    let mut p = planner(
        PlannerConfig {
            max_attempts: 3,
            ..one_per_node()
        },
        100,
    );
    p.add_job(JobId(7), 1, alloc::vec![item(1, &[1, 2], 11)])
        .expect("job");
    assert_eq!(told(&mut p, 0), "start#0 j7i0 1>11 1x 100M");
    p.ended(TransferId(0), Ended::Failed, at(1));
    assert_eq!(told(&mut p, 1), "");
    assert_eq!(p.next_wakeup(), Some(at(11)));
    assert_eq!(told(&mut p, 11), "start#1 j7i0 2>11 1x 100M");
    p.ended(TransferId(1), Ended::Failed, at(12));
    assert_eq!(told(&mut p, 22), "start#2 j7i0 1>11 1x 100M");
    p.ended(TransferId(2), Ended::Failed, at(23));
    assert_eq!(told(&mut p, 23), "end j7");
    let view = p.cancel(JobId(7)).expect("job");
    assert_eq!((view.failed, view.done, view.waiting, view.running), (1, 0, 0, 0));
}

#[test]
fn wrong_jobs_are_refused() {
    let mut p = planner(one_per_node(), 100);
    let good = || alloc::vec![item(1, &[1], 11)];
    for bad in [
        item(1, &[], 11),
        item(1, &[11], 11),
        JobItem {
            range: 5..5,
            ..item(1, &[1], 11)
        },
    ] {
        let items = alloc::vec![item(1, &[1], 11), bad];
        assert_eq!(
            p.add_job(JobId(1), 1, items),
            Err(PlannerError::BadItem(ItemId(1)))
        );
    }
    for weight in [0, 1001] {
        assert_eq!(
            p.add_job(JobId(1), weight, good()),
            Err(PlannerError::BadWeight(weight))
        );
    }
    p.add_job(JobId(1), 1, good()).expect("job");
    assert_eq!(
        p.add_job(JobId(1), 1, good()),
        Err(PlannerError::DuplicateJob(JobId(1)))
    );
    assert_eq!(p.cancel(JobId(2)), Err(PlannerError::UnknownJob(JobId(2))));
    // To a node that is not there: it waits until it comes.
    p.add_job(JobId(2), 1, alloc::vec![item(1, &[1], 99)])
        .expect("job");
    assert!(!told(&mut p, 0).contains("j2"));
    p.set_node(NodeId(99), SiteId(3), DiskLimits::default())
        .expect("node");
    p.ended(TransferId(0), Ended::Done, at(1));
    assert_eq!(told(&mut p, 1), "start#1 j2i0 1>99 1x 18446744073709M, end j1");
}

/// The sum of told rates on everything that has a limit, as someone sees it who follows the changes.
#[derive(Default)]
struct Follower {
    rates: BTreeMap<TransferId, u64>,
    uses: BTreeMap<TransferId, Transfer>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn sums_fit_at_every_change_and_every_job_ends(
        seed: u64, jobs in 1u64..6, items in 1u64..12, per_node in 1usize..4,
    ) {
        let mut random = Random::new(seed);
        let config = PlannerConfig {
            max_per_node: per_node,
            stream_max: (random.below(2) == 0).then(|| BitRate::from_mbps(30)),
            ..PlannerConfig::default()
        };
        let mut p = Planner::new(config, at(0));
        let mut capacity: BTreeMap<(u32, u64, u64), u64> = BTreeMap::new();
        for n in 0..9u32 {
            let site = SiteId(n % 3);
            let read = (random.below(2) == 0).then(|| BitRate::from_mbps(1 + random.below(200) as u32));
            let write = (random.below(2) == 0).then(|| BitRate::from_mbps(1 + random.below(200) as u32));
            capacity.extend(read.map(|r| ((1, u64::from(n), 0), r.bps())));
            capacity.extend(write.map(|r| ((2, u64::from(n), 0), r.bps())));
            p.set_node(NodeId(n), site, DiskLimits { read, write }).expect("node");
        }
        for (a, b) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
            let mbps = 1 + random.below(300) as u32;
            p.set_route(SiteId(a), SiteId(b), route(mbps));
            capacity.insert((0, u64::from(a), u64::from(b)), BitRate::from_mbps(mbps).bps());
        }
        for job in 0..jobs {
            let weight = 1 + random.below(5) as u32;
            let mut list = Vec::new();
            for i in 0..items {
                let to = random.below(9) as u32;
                let mut from: Vec<u32> = (0..9).filter(|n| *n != to && random.below(3) == 0).collect();
                if from.is_empty() {
                    from.push((to + 1) % 9);
                }
                list.push(item(i, &from, to));
            }
            p.add_job(JobId(job), weight, list).expect("job");
        }
        let mut seen = Follower::default();
        let (mut now, mut ended, mut steps) = (0, 0, 0);
        loop {
            while let Some(change) = p.poll(at(now)) {
                match change {
                    Change::Start(t) => {
                        seen.rates.insert(t.id, t.rate.bps());
                        seen.uses.insert(t.id, t);
                    }
                    Change::Rate(id, rate) => {
                        prop_assert!(seen.rates.insert(id, rate.map_or(0, BitRate::bps)).is_some());
                    }
                    Change::Stop(id) => { seen.rates.remove(&id); }
                    Change::Finished(_) => ended += 1,
                }
                let mut sums: BTreeMap<(u32, u64, u64), u64> = BTreeMap::new();
                let mut at_node: BTreeMap<(u32, NodeId), usize> = BTreeMap::new();
                for (id, rate) in &seen.rates {
                    let t = &seen.uses[id];
                    for key in [
                        (0, u64::from(t.route.0.0), u64::from(t.route.1.0)),
                        (1, u64::from(t.source.0), 0),
                        (2, u64::from(t.to.0), 0),
                    ] {
                        if capacity.contains_key(&key) {
                            *sums.entry(key).or_default() += rate;
                        }
                    }
                    *at_node.entry((1, t.source)).or_default() += 1;
                    *at_node.entry((2, t.to)).or_default() += 1;
                    prop_assert!(t.source != t.to && t.streams >= 1 && t.streams <= 8);
                }
                for (key, sum) in sums {
                    prop_assert!(sum <= capacity[&key], "{key:?}: {sum} of {}", capacity[&key]);
                }
                prop_assert!(at_node.values().all(|n| *n <= per_node));
            }
            if let Some((&id, _)) = seen.rates.iter().nth(random.below(seen.rates.len() as u64) as usize) {
                seen.rates.remove(&id);
                let how = if random.below(5) == 0 { Ended::Failed } else { Ended::Done };
                p.ended(id, how, at(now));
            } else if let Some(wake) = p.next_wakeup() {
                now = now.max(wake.as_ps() / 1_000_000_000_000);
            } else {
                break;
            }
            steps += 1;
            prop_assert!(steps < 5_000, "does not end");
        }
        prop_assert_eq!(ended, jobs);
        for job in 0..jobs {
            let view = p.view(JobId(job)).expect("job");
            prop_assert_eq!((view.done + view.failed) as u64, items);
            prop_assert_eq!((view.waiting, view.running), (0, 0));
        }
    }
}
