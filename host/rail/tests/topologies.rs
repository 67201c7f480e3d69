//! Rails and plans of machines from files and descriptions.

use std::path::PathBuf;

use kuroshio_core::rail::{Path, Problem, RailCapacity, rates};
use kuroshio_rail::{
    Condition, Machine, Method, Placement, PlanRequest, Rail, RailError, Roots, Source, bind, discover, find,
    memory_nodes, plan, rails, rows, solve, svg,
};
use proptest::prelude::*;

fn file(name: &str) -> Source {
    Source::Xml(
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/topologies")
            .join(name),
    )
}

fn read(source: &Source) -> Machine {
    discover(source, &Roots::default()).expect("a topology")
}

fn synthetic(text: &str) -> Machine {
    read(&format!("synthetic:{text}").parse().expect("a description"))
}

fn request(rate: &str) -> PlanRequest {
    let mut request = PlanRequest::new(rate.parse().expect("a rate"));
    request.card_rate = Some("10G".parse().expect("a rate"));
    request
}

fn short(rail: &Rail) -> (&str, Option<u32>, u32, &[u32]) {
    (rail.id.as_str(), rail.card_node, rail.node, &rail.cores)
}

#[test]
fn the_plan_for_the_paper_s_host_is_condition_a() {
    let machine = read(&file("paper-002.xml"));
    // 89 pictures per second of 3840x2160 in 24 bits (paper 002, figure 4): more than one card carries.
    let made = plan(&machine, &request("17.715456G")).expect("a plan");
    assert_eq!(made.condition, Some(Condition::A), "{made:?}");
    let each: Vec<_> = made
        .rails
        .iter()
        .map(|r| (r.card_node, r.application_node, r.memory_node, r.rate_bps))
        .collect();
    assert_eq!(
        each,
        [(Some(0), 0, 0, 8_857_728_000), (Some(1), 1, 1, 8_857_728_000)]
    );
    assert!(
        made.rails
            .iter()
            .all(|r| !r.application.is_empty() && r.interrupts != r.stack),
        "{made:?}"
    );
    // The application away from the card is not.
    let mut away = request("17.715456G");
    away.placement = Placement::Other;
    assert_eq!(plan(&machine, &away).expect("a plan").condition, None);
    // One card is enough for one picture's half: there is no condition of one rail.
    assert_eq!(plan(&machine, &request("6G")).expect("a plan").rails.len(), 1);
}

#[test]
fn conditions_are_the_paper_s_rows() {
    let machine = read(&file("paper-002.xml"));
    let made = plan(&machine, &request("17.715456G")).expect("a plan");
    // Core, memory and card of each rail; cores 0, 1 are 1a, 1b and 2, 3 are 2a, 2b.
    let row = |cores: [u32; 2], memory: [u32; 2]| {
        let mut rails = made.rails.clone();
        for (i, rail) in rails.iter_mut().enumerate() {
            (rail.application, rail.application_node, rail.memory_node) =
                (vec![cores[i]], cores[i] / 2, memory[i]);
        }
        kuroshio_rail::condition(&rails)
    };
    assert_eq!(row([0, 2], [0, 1]), Some(Condition::A));
    assert_eq!(row([2, 0], [0, 1]), Some(Condition::B));
    assert_eq!(row([0, 1], [0, 0]), Some(Condition::C));
    assert_eq!(row([0, 0], [0, 0]), Some(Condition::D));
    assert_eq!(row([0, 2], [1, 1]), None);
}

#[test]
fn the_rows_on_the_paper_s_host_are_its_table() {
    let machine = read(&file("paper-002.xml"));
    let rows = rows(&machine).expect("rows");
    let short: Vec<_> = rows
        .iter()
        .map(|r| {
            let rails = r.rails.each_ref();
            (
                r.condition,
                rails.map(|p| p.core),
                rails.map(|p| p.memory_node),
                rails.map(|p| p.card_node),
                r.same_as,
            )
        })
        .collect();
    let cards = [Some(0), Some(1)];
    assert_eq!(
        short,
        [
            (Condition::A, [0, 2], [0, 1], cards, None),
            (Condition::B, [2, 0], [0, 1], cards, None),
            (Condition::C, [0, 1], [0, 0], cards, None),
            (Condition::D, [0, 0], [0, 0], cards, None),
        ]
    );
    // What plans are called is the same.
    let made = plan(&machine, &request("17.715456G")).expect("a plan");
    for row in &rows {
        let mut rails = made.rails.clone();
        for (rail, place) in rails.iter_mut().zip(&row.rails) {
            assert_eq!(rail.card, place.card);
            (rail.application, rail.application_node, rail.memory_node) =
                (place.pus.clone(), place.core_node, place.memory_node);
        }
        assert_eq!(kuroshio_rail::condition(&rails), Some(row.condition));
    }
}

#[test]
fn rows_that_a_machine_cannot_tell_apart_say_so() {
    let same = |text: &str| rows(&synthetic(text)).expect("rows").map(|r| r.same_as);
    let (a, c) = (Some(Condition::A), Some(Condition::C));
    // One node of two cores: only D is another.
    assert_eq!(same("numa:1 core:2 pu:1"), [None, a, a, None]);
    // One core: all are one.
    assert_eq!(same("numa:1 core:1 pu:2"), [None, a, a, a]);
    // Two nodes without cards: B is A with its memory away.
    assert_eq!(same("numa:2 core:2 pu:1"), [None; 4]);
    // Two nodes of one core each: there is no 1b.
    assert_eq!(same("numa:2 core:1 pu:1"), [None, None, None, c]);
    // Cards of unknown nodes are no cards here.
    let machine = read(&file("vm-unknown-node.xml"));
    assert!(rows(&machine).expect("rows")[0].rails[0].card.is_none());
    assert!(rows(&Machine::default()).expect_err("no core").is_bad_input());
}

#[test]
fn memory_is_where_it_was_bound_to() {
    let machine = read(&Source::Here);
    let node = rails(&machine)[0].node;
    let bytes = vec![1; 1 << 20];
    // A sandbox may forbid to ask.
    match memory_nodes(&bytes) {
        Ok(nodes) => assert!(machine.nodes.len() > 1 || nodes == [node], "{nodes:?}"),
        Err(e) => assert!(matches!(e, RailError::Hwloc(_)), "{e}"),
    }
}

#[test]
fn a_node_of_minus_one_is_said_and_given_a_node() {
    let machine = read(&file("vm-unknown-node.xml"));
    assert_eq!(machine.cards[0].node, None);
    assert_eq!(machine.cards[0].near_nodes, [0, 1]);
    assert!(
        machine.notes.iter().any(|n| n.contains("-1")),
        "{:?}",
        machine.notes
    );
    let rails = rails(&machine);
    assert_eq!(
        rails.iter().map(short).collect::<Vec<_>>(),
        [("0000:01:00.0", None, 0, &[0, 1][..])]
    );
    let made = plan(&machine, &request("5G")).expect("a plan");
    assert!(
        made.explain.iter().any(|e| e.contains("not known")),
        "{:?}",
        made.explain
    );
}

#[test]
fn cards_of_one_node_share_its_cores() {
    let machine = read(&file("four-nodes.xml"));
    let rails = rails(&machine);
    assert_eq!(
        rails.iter().map(short).collect::<Vec<_>>(),
        [
            ("0000:05:00.0", Some(0), 0, &[0, 1, 2, 3][..]),
            ("0000:81:00.0", Some(2), 2, &[8, 9][..]),
            ("0000:82:00.0", Some(2), 2, &[10, 11][..]),
        ]
    );
    assert_eq!(rails[1].pus, [8, 24, 9, 25]);
    for name in ["2", "0000:81:00.0", "eth2"] {
        assert_eq!(find(&machine, name, None).expect("a rail").number, 2, "{name}");
    }
    assert_eq!(find(&machine, "auto", Some("eth3")).expect("a rail").number, 3);
    let error = find(&machine, "9", None).expect_err("no such rail");
    assert!(
        error.is_bad_input() && error.to_string().contains("0000:82:00.0"),
        "{error}"
    );
}

#[test]
fn machines_without_cards_have_a_rail_for_each_node() {
    let machine = synthetic("pack:2 [numa(memory=16GB)] core:4 pu:2");
    assert_eq!((machine.nodes.len(), machine.cores.len()), (2, 8));
    let rails = rails(&machine);
    assert_eq!(
        rails.iter().map(short).collect::<Vec<_>>(),
        [
            ("node0", None, 0, &[0, 2, 4, 6][..]),
            ("node1", None, 1, &[8, 10, 12, 14][..])
        ]
    );
    let mut want = PlanRequest::new("40G".parse().expect("a rate"));
    let made = plan(&machine, &want).expect("a plan");
    assert_eq!((made.rails.len(), made.carried_bps), (2, 40_000_000_000));
    // 20 Gbps of 7 each: interrupts 1.14, stack 1.71, so 2 cores each; the application shares the stack's.
    assert_eq!(
        (made.rails[0].interrupts.len(), made.rails[0].stack.len()),
        (4, 4)
    );
    assert_eq!(made.rails[0].application, made.rails[0].stack);
    // Three times 20 Gbps * 200 ms.
    assert_eq!(made.rails[0].memory_bytes, 1_500_000_000);
    want.rate = "100G".parse().expect("a rate");
    let made = plan(&machine, &want).expect("a plan");
    assert_eq!(made.carried_bps, 56_000_000_000);
    assert!(
        made.explain.iter().any(|e| e.contains("carry")),
        "{:?}",
        made.explain
    );
}

#[test]
fn shared_caches_are_kept_together() {
    let machine = synthetic("numa:1 l3:2 core:3 pu:1");
    let caches: Vec<_> = machine
        .caches
        .iter()
        .map(|c| (c.level, c.first_pu, c.cores.clone()))
        .collect();
    assert_eq!(caches, [(3, 0, vec![0, 1, 2]), (3, 3, vec![3, 4, 5])]);
    assert_eq!(machine.cores[4].cache, Some(3));
}

#[test]
fn a_card_that_does_not_tell_its_rate_needs_one() {
    let machine = read(&file("paper-002.xml"));
    let error = plan(&machine, &PlanRequest::new("5G".parse().expect("a rate"))).expect_err("no rate");
    assert!(
        error.is_bad_input() && error.to_string().contains("--card-rate"),
        "{error}"
    );
}

#[test]
fn streams_are_assigned_to_lanes() {
    let machine = read(&file("paper-002.xml"));
    let mut want = request("17G");
    want.lanes = ["10G", "4G", "4G"].map(|l| l.parse().expect("a rate")).to_vec();
    want.streams = Some(6);
    let lanes = plan(&machine, &want).expect("a plan").lanes.expect("lanes");
    assert!(lanes.proven && lanes.total_bps <= lanes.bound_bps, "{lanes:?}");
    want.streams = Some(0);
    assert!(plan(&machine, &want).expect_err("no streams").is_bad_input());
}

#[test]
fn what_is_no_topology_is_refused() {
    let here = tempfile::tempdir().expect("a folder");
    let path = here.path().join("x.xml");
    let refused = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        match discover(&Source::Xml(path.clone()), &Roots::default()) {
            Err(RailError::BadInput(text)) => assert!(text.contains("lstopo"), "{text}"),
            other => panic!("{text:?}: {other:?}"),
        }
    };
    for text in [
        "",
        "hello",
        "<xml/>",
        "<topology version=\"2.0\"><object type=\"Core\"/></topology>",
    ] {
        refused(text);
    }
    let missing = discover(&Source::Xml(here.path().join("none.xml")), &Roots::default());
    assert!(missing.expect_err("no file").is_bad_input());
    assert!("synthetic:pack:9999999 core:9999999".parse::<Source>().is_err());
}

#[test]
fn another_machine_cannot_be_bound_to() {
    let machine = read(&file("paper-002.xml"));
    let binding = kuroshio_rail::Binding {
        pus: vec![0],
        memory_node: 0,
    };
    assert!(bind(&machine, &binding).expect_err("not here").is_bad_input());
}

#[test]
fn the_picture_shows_every_core_and_card() {
    for name in ["paper-002.xml", "four-nodes.xml", "vm-unknown-node.xml"] {
        let machine = read(&file(name));
        let picture = svg(&machine, &rails(&machine));
        for card in &machine.cards {
            assert!(picture.contains(&card.pci), "{name}");
        }
        let squares = picture.matches("width=\"46\" height=\"46\"").count();
        assert_eq!(squares, machine.cores.len(), "{name}");
        assert_eq!(
            picture.matches("<text").count(),
            picture.matches("</text>").count()
        );
    }
    let mut machine = read(&file("paper-002.xml"));
    machine.name = "<script>&\u{7}".into();
    assert!(svg(&machine, &[]).contains("&lt;script&gt;&amp;<"));
}

#[test]
fn this_machine_is_read() {
    let machine = read(&Source::Here);
    assert!(
        machine.here && !machine.cores.is_empty() && !rails(&machine).is_empty(),
        "{machine:?}"
    );
    let cores: usize = machine.nodes.iter().map(|n| n.cores.len()).sum();
    assert_eq!(cores, machine.cores.len());
}

/// Binding is of the calling thread: a thread of its own, so that other tests stay free.
#[test]
fn binding_shows_in_proc() {
    let machine = read(&Source::Here);
    let rail = rails(&machine).remove(0);
    let last = *rail.pus.last().expect("a processing unit");
    let work = move || {
        let binding = kuroshio_rail::Binding {
            pus: vec![last],
            memory_node: rail.node,
        };
        let notes = bind(&machine, &binding).expect("binding");
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
        let allowed = status
            .lines()
            .find(|l| l.starts_with("Cpus_allowed_list:"))
            .expect("a line")
            .to_owned();
        assert_eq!(allowed.split_whitespace().nth(1), Some(last.to_string().as_str()));
        let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
        let bound = maps.contains(&format!("bind:{}", rail.node));
        assert!(
            bound || !notes.is_empty() || maps.is_empty(),
            "{notes:?} {maps:.200}"
        );
    };
    std::thread::spawn(work).join().expect("a thread");
}

/// Every choice of paths, with exact rates.
fn brute(problem: &Problem) -> u64 {
    fn deeper(problem: &Problem, paths: &[Path], chosen: &mut Vec<Option<Path>>, best: &mut u64) {
        if chosen.len() == problem.demands_bps().len() {
            *best = (*best).max(rates(problem, chosen).total_bps);
            return;
        }
        for path in std::iter::once(None).chain(paths.iter().copied().map(Some)) {
            chosen.push(path);
            deeper(problem, paths, chosen, best);
            chosen.pop();
        }
    }
    let (paths, mut best) = (problem.paths().collect::<Vec<_>>(), 0);
    deeper(problem, &paths, &mut Vec::new(), &mut best);
    best
}

prop_compose! {
    fn any_problem()(
        rails in proptest::collection::vec((0u64..20, proptest::collection::vec(0u64..12, 1..3)), 1..3),
        lanes in proptest::collection::vec(0u64..15, 1..3),
        demands in proptest::collection::vec(0u64..12, 1..5),
        mask in any::<[bool; 4]>(),
        scale in proptest::sample::select(vec![1u64, 1_000_000_007]),
    ) -> Problem {
        let reach = (0..rails.len()).map(|r| (0..lanes.len()).map(|l| mask[2 * r + l]).collect()).collect();
        let rails = rails.into_iter().map(|(card, cores)| RailCapacity {
            card_bps: card * scale,
            cores_bps: cores.into_iter().map(|c| c * scale).collect(),
        });
        let scaled = |v: Vec<u64>| v.into_iter().map(|x| x * scale).collect();
        Problem::new(rails.collect(), scaled(lanes), scaled(demands), Some(reach)).expect("small")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn small_problems_are_solved_to_their_best(problem in any_problem()) {
        let found = solve(&problem);
        prop_assert_eq!(problem.check(&found.streams), Ok(()));
        prop_assert!(found.method != Method::Greedy);
        prop_assert_eq!(found.total_bps, brute(&problem));
    }
}

#[test]
fn a_greedy_choice_is_beaten_by_the_programme() {
    // The largest first fills 10 with 6 and 4, or 7 with 6: the best is 6 + 4 and 5 + 2.
    let rail = RailCapacity {
        card_bps: 100,
        cores_bps: vec![100],
    };
    let problem = Problem::new(vec![rail], vec![10, 7], vec![6, 5, 4, 2], None).expect("a problem");
    let found = solve(&problem);
    assert_eq!(
        (found.total_bps, found.proven),
        (brute(&problem), true),
        "{found:?}"
    );
}

/// splitmix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn a_damaged_file_is_read_or_refused() {
    let here = tempfile::tempdir().expect("a folder");
    let path = here.path().join("damaged.xml");
    let mut state = 1;
    let mut outcomes = [0, 0];
    for name in ["paper-002.xml", "four-nodes.xml", "vm-unknown-node.xml"] {
        let Source::Xml(whole) = file(name) else { continue };
        let whole = std::fs::read(whole).expect("a file");
        for _ in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next(&mut state) % 4 {
                let at = next(&mut state) as usize % bytes.len();
                match next(&mut state) % 4 {
                    0 => bytes[at] = b"0123456789abcdefx\"<>/ "[next(&mut state) as usize % 22],
                    1 => bytes.truncate(at),
                    2 => {
                        bytes.remove(at);
                    }
                    _ => {
                        let line = whole
                            .split(|b| *b == b'\n')
                            .nth(next(&mut state) as usize % 40)
                            .unwrap_or_default();
                        bytes.splice(at..at, line.iter().copied());
                    }
                }
                if bytes.is_empty() {
                    break;
                }
            }
            std::fs::write(&path, &bytes).expect("a file");
            let read = discover(&Source::Xml(path.clone()), &Roots::default());
            outcomes[usize::from(read.is_ok())] += 1;
            if let Ok(machine) = read {
                let _ = (svg(&machine, &rails(&machine)), plan(&machine, &request("20G")));
            }
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}
