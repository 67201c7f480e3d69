use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const G: u64 = 1_000_000_000;

fn rail(card: u64, cores: &[u64]) -> RailCapacity {
    RailCapacity {
        card_bps: card,
        cores_bps: cores.to_vec(),
    }
}

fn problem(rails: Vec<RailCapacity>, lanes: &[u64], demands: &[u64]) -> Problem {
    Problem::new(rails, lanes.to_vec(), demands.to_vec(), None).expect("a problem")
}

/// Every choice of paths, with exact rates: the truth for small problems.
fn brute(problem: &Problem) -> u64 {
    let paths: Vec<Option<Path>> = core::iter::once(None).chain(problem.paths().map(Some)).collect();
    let streams = problem.demands_bps().len();
    let mut chosen = vec![0usize; streams];
    let mut best = 0;
    loop {
        let choice: Vec<Option<Path>> = chosen.iter().map(|&i| paths[i]).collect();
        best = best.max(rates(problem, &choice).total_bps);
        let mut at = 0;
        while at < streams && chosen[at] + 1 == paths.len() {
            chosen[at] = 0;
            at += 1;
        }
        if at == streams {
            return best;
        }
        chosen[at] += 1;
    }
}

#[test]
fn equal_rails_and_lanes_are_joined_one_to_one() {
    let p = problem(
        vec![rail(10 * G, &[7 * G]), rail(10 * G, &[7 * G])],
        &[10 * G, 10 * G],
        &[6 * G, 6 * G],
    );
    let a = greedy(&p);
    assert_eq!(a.total_bps, 12 * G);
    let (x, y) = (a.paths[0].expect("a path"), a.paths[1].expect("a path"));
    assert!(x.rail != y.rail && x.lane != y.lane);
    assert_eq!(p.check(&a), Ok(()));
}

#[test]
fn one_fast_rail_feeds_several_slow_lanes() {
    // One-to-one would leave two lanes idle: 10 of 30.
    let p = problem(
        vec![rail(40 * G, &[15 * G, 15 * G, 15 * G])],
        &[10 * G, 10 * G, 10 * G],
        &[10 * G; 3],
    );
    let a = greedy(&p);
    assert_eq!((a.total_bps, bound(&p)), (30 * G, 30 * G));
    assert_eq!(p.check(&a), Ok(()));
}

#[test]
fn what_a_rail_does_not_reach_is_not_used() {
    let reach = vec![vec![true, false], vec![false, true]];
    let p = Problem::new(
        vec![rail(G, &[G]), rail(9 * G, &[9 * G])],
        vec![9 * G, G],
        vec![9 * G, 9 * G],
        Some(reach),
    );
    let p = p.expect("a problem");
    assert_eq!((bound(&p), greedy(&p).total_bps), (2 * G, 2 * G));
    let wrong = [
        Some(Path {
            rail: 0,
            core: 0,
            lane: 1,
        }),
        None,
    ];
    assert_eq!(rates(&p, &wrong).total_bps, 0);
}

#[test]
fn sizes_are_checked() {
    let one = || vec![rail(1, &[1])];
    let new = |rails, lanes: usize, streams: usize, reach| {
        Problem::new(rails, vec![1; lanes], vec![1; streams], reach)
    };
    assert_eq!(new(vec![], 1, 1, None), Err(ProblemError::Rails(0)));
    assert_eq!(new(vec![rail(1, &[])], 1, 1, None), Err(ProblemError::Cores(0)));
    assert_eq!(
        new(one(), MAX_LANES + 1, 1, None),
        Err(ProblemError::Lanes(MAX_LANES + 1))
    );
    assert_eq!(new(one(), 1, 0, None), Err(ProblemError::Streams(0)));
    assert_eq!(new(one(), 2, 1, Some(vec![vec![true]])), Err(ProblemError::Reach));
}

#[test]
fn violations_are_found() {
    let p = problem(vec![rail(10, &[6, 6])], &[9], &[5, 5]);
    let path = |core| {
        Some(Path {
            rail: 0,
            core,
            lane: 0,
        })
    };
    let a = |core, rates: [u64; 2], total_bps| Assignment {
        paths: vec![path(0), path(core)],
        rates_bps: rates.to_vec(),
        total_bps,
    };
    assert_eq!(p.check(&a(1, [5, 4], 9)), Ok(()));
    assert_eq!(p.check(&a(1, [5, 5], 10)), Err(Violation::Lane(0)));
    assert_eq!(p.check(&a(0, [4, 4], 8)), Err(Violation::Core(0, 0)));
    assert_eq!(p.check(&a(2, [4, 4], 8)), Err(Violation::Stream(1)));
    assert_eq!(p.check(&a(1, [4, 4], 9)), Err(Violation::Total));
    assert_eq!(p.check(&a(1, [6, 1], 7)), Err(Violation::Stream(0)));
}

prop_compose! {
    fn any_problem()(
        rails in proptest::collection::vec((0u64..20, proptest::collection::vec(0u64..12, 1..3)), 1..3),
        lanes in proptest::collection::vec(0u64..15, 1..3),
        demands in proptest::collection::vec(0u64..12, 1..4),
        mask in any::<[bool; 4]>(),
    ) -> Problem {
        let reach = (0..rails.len()).map(|r| (0..lanes.len()).map(|l| mask[2 * r + l]).collect()).collect();
        let rails = rails.into_iter().map(|(card, cores)| rail(card, &cores)).collect();
        Problem::new(rails, lanes, demands, Some(reach)).expect("small")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn greedy_keeps_all_capacities_and_lies_between_zero_and_the_truth(p in any_problem()) {
        let (quick, truth, top) = (greedy(&p), brute(&p), bound(&p));
        prop_assert_eq!(p.check(&quick), Ok(()));
        prop_assert!(quick.total_bps <= truth && truth <= top);
    }

    #[test]
    fn rates_of_chosen_paths_are_the_best_of_all_whole_rates(p in any_problem(), pick in any::<[usize; 3]>()) {
        let paths: Vec<Path> = p.paths().collect();
        let chosen: Vec<Option<Path>> = (0..p.demands_bps().len())
            .map(|s| paths.get(pick[s] % paths.len().max(1)).copied())
            .collect();
        let exact = rates(&p, &chosen);
        prop_assert_eq!(p.check(&exact), Ok(()));
        // All whole rates of at most three streams.
        let d = |s: usize| p.demands_bps().get(s).copied().unwrap_or(0);
        let mut best = 0;
        for a in 0..=d(0) {
            for b in 0..=d(1) {
                for c in 0..=d(2) {
                    let all = [a, b, c];
                    let rates_bps = all[..p.demands_bps().len()].to_vec();
                    let total_bps = rates_bps.iter().sum();
                    let tried = Assignment { paths: exact.paths.clone(), rates_bps, total_bps };
                    if p.check(&tried).is_ok() {
                        best = best.max(total_bps);
                    }
                }
            }
        }
        prop_assert_eq!(exact.total_bps, best);
    }
}
