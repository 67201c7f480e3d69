//! Which rails for a rate, and which cores and how much memory of each.
//!
//! ```text
//!     carries(rail) = min(its card, its cores * core rate)
//!     rails         : the largest first, of equal ones one of each node before a second, until they carry the rate; the rate is divided evenly, up to what each carries
//!     interrupts    : 40 % of rate / core rate, stack: 60 %, application: 1 %; each rounded up to whole cores
//!     memory        : three times rate * RTT (socket buffers)
//! ```
//!
//! Source of the numbers: paper 004 (one stream, 2004): a core carries somewhat above 7 Gbps, 60 % of an exhausted
//! sender is TCP, 40 % soft interrupts, below 1 % the application; Linux needs a buffer of three windows. A core's
//! rate on a machine of today is another: it is an option, and `--measure` measures.
//!
//! Where a rail has fewer cores than that, the application shares the stack's, then all share.

use serde::{Deserialize, Serialize};

use kuroshio_core::rail::{Problem, RailCapacity};
use kuroshio_core::units::{BitRate, PicoDuration};

use crate::error::RailError;
use crate::machine::Machine;
use crate::rails::{Rail, rails};
use crate::solve::{Solution, solve};

/// What a core carries when nobody says otherwise, bit/s at frame level (paper 004, figure 3).
pub const CORE_RATE: BitRate = BitRate::from_mbps(7_000);
/// Socket buffers over rate * RTT (paper 004).
const WINDOWS: u64 = 3;

/// Where the application's cores and memory are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On the card's node (paper 002).
    #[default]
    Local,
    /// On the nearest other node; interrupts and stack stay at the card (ESnet's advice for EScp).
    Other,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// Rate of all rails in sum, frame level.
    pub rate: BitRate,
    /// What a core carries, frame level.
    pub core_rate: BitRate,
    /// What a card carries that does not say so itself.
    pub card_rate: Option<BitRate>,
    /// Round-trip time, for the memory.
    pub rtt: PicoDuration,
    /// At least so many rails.
    pub min_rails: usize,
    /// Where the application goes.
    pub placement: Placement,
    /// Lanes to connect to; none: the plan ends at the cards.
    pub lanes: Vec<BitRate>,
    /// Streams over the lanes; as many as stack cores or lanes, whichever is more, when nobody says.
    pub streams: Option<usize>,
}

impl PlanRequest {
    /// The defaults for a rate: 7 Gbps for a core, 200 ms, local.
    #[must_use]
    pub fn new(rate: BitRate) -> Self {
        Self {
            rate,
            core_rate: CORE_RATE,
            card_rate: None,
            rtt: PicoDuration::from_ms(200),
            min_rails: 1,
            placement: Placement::Local,
            lanes: Vec::new(),
            streams: None,
        }
    }
}

/// The part of a plan for one rail. Processing units are the system's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RailPlan {
    /// Number on this host.
    pub rail: u32,
    /// Absolute identity.
    pub id: String,
    /// Interfaces of the card.
    pub interfaces: Vec<String>,
    /// PCI address of the card.
    pub card: Option<String>,
    /// Node of the card, where known.
    pub card_node: Option<u32>,
    /// Its share of the rate, bit/s, frame level.
    pub rate_bps: u64,
    /// What it could carry, bit/s.
    pub carries_bps: u64,
    /// Processing units for the application's threads.
    pub application: Vec<u32>,
    /// Node of these.
    pub application_node: u32,
    /// Processing units for the network stack (RPS, XPS).
    pub stack: Vec<u32>,
    /// Their cores, by the lowest processing unit: what streams are assigned to.
    pub stack_cores: Vec<u32>,
    /// Processing units for the card's interrupts.
    pub interrupts: Vec<u32>,
    /// Node of the memory.
    pub memory_node: u32,
    /// Memory for socket buffers, bytes.
    pub memory_bytes: u64,
}

/// Rows A to D of the paper's table (002, figure 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Each rail's core and memory at its card, cores of their own.
    A,
    /// Memory at the card, core at another node.
    B,
    /// Cores and memory of all rails on one node, cards on several.
    C,
    /// As C, and all on one core.
    D,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The rate that was asked for, bit/s, frame level.
    pub rate_bps: u64,
    /// What the rails carry of it.
    pub carried_bps: u64,
    /// What a core was taken to carry, bit/s.
    pub core_rate_bps: u64,
    /// Where the application is.
    pub placement: Placement,
    /// Which row of the paper's table it is, for two rails or more with cards of known nodes.
    pub condition: Option<Condition>,
    /// The rails.
    pub rails: Vec<RailPlan>,
    /// Streams on rails and lanes.
    pub lanes: Option<Solution>,
    /// Why it is so, in sentences.
    pub explain: Vec<String>,
}

/// Plans for a machine.
///
/// # Errors
/// A card that does not tell its rate where none was given, no usable rail, or sizes beyond what can be assigned.
pub fn plan(machine: &Machine, request: &PlanRequest) -> Result<Plan, RailError> {
    let mut explain = Vec::new();
    let mut able = Vec::new();
    for rail in rails(machine) {
        if let Some(why) = unusable(machine, &rail) {
            explain.push(format!("rail {} ({}): not used: {why}", rail.number, rail.id));
            continue;
        }
        let carries = carries(&rail, request)?;
        able.push((rail, carries));
    }
    able.sort_by_key(|(rail, carries)| (std::cmp::Reverse(*carries), rail.number));
    let mut before: Vec<(u32, u64)> = Vec::new();
    let mut ranked = Vec::new();
    for (rail, carries) in able {
        // How many equal rails of its node come before it.
        let rank = before.iter().filter(|b| **b == (rail.node, carries)).count();
        before.push((rail.node, carries));
        ranked.push((rank, rail, carries));
    }
    ranked.sort_by_key(|(rank, rail, carries)| (std::cmp::Reverse(*carries), *rank, rail.number));
    let mut sum = 0u64;
    let mut chosen = Vec::new();
    for (_, rail, carries) in ranked {
        if sum >= request.rate.bps() && chosen.len() >= request.min_rails {
            explain.push(format!("rail {} ({}): not needed", rail.number, rail.id));
            continue;
        }
        sum = sum.saturating_add(carries);
        chosen.push((rail, carries));
    }
    if chosen.is_empty() {
        return Err(RailError::BadInput(format!(
            "no rail of {} can be used: {}",
            machine.name,
            explain.join("; ")
        )));
    }
    chosen.sort_by_key(|(rail, _)| rail.number);
    let caps: Vec<u64> = chosen.iter().map(|(_, carries)| *carries).collect();
    let shares = divide(request.rate.bps(), &caps);
    let mut planned = Vec::new();
    for ((rail, carries), share) in chosen.iter().zip(shares) {
        planned.push(one(machine, rail, *carries, share, request, &mut explain));
    }
    let carried_bps = planned.iter().map(|r| r.rate_bps).sum();
    if carried_bps < request.rate.bps() {
        explain.push(format!(
            "the rails carry {carried_bps} bit/s of the {} that were asked for",
            request.rate.bps()
        ));
    }
    let lanes = lanes(request, &chosen, &planned, carried_bps)?;
    Ok(Plan {
        rate_bps: request.rate.bps(),
        carried_bps,
        core_rate_bps: request.core_rate.bps(),
        placement: request.placement,
        condition: condition(&planned),
        rails: planned,
        lanes,
        explain,
    })
}

fn unusable(machine: &Machine, rail: &Rail) -> Option<&'static str> {
    if rail.cores.is_empty() {
        return Some("it has no core");
    }
    let card = machine
        .cards
        .iter()
        .find(|c| Some(&c.pci) == rail.card.as_ref())?;
    let down = |state: &Option<String>| {
        state
            .as_deref()
            .is_some_and(|s| s == "down" || s == "lowerlayerdown")
    };
    (!card.interfaces.is_empty() && card.interfaces.iter().all(|i| down(&i.state)))
        .then_some("its interfaces are down")
}

fn carries(rail: &Rail, request: &PlanRequest) -> Result<u64, RailError> {
    let cores = request.core_rate.bps().saturating_mul(rail.cores.len() as u64);
    if rail.card.is_none() {
        return Ok(cores);
    }
    let card = rail.rate_bps.or(request.card_rate.map(BitRate::bps)).ok_or_else(|| {
        RailError::BadInput(format!(
            "card {} does not say what it carries (a virtual card or a topology from a file does not): give --card-rate, such as 10G",
            rail.id
        ))
    })?;
    Ok(card.min(cores))
}

/// Divides a rate evenly over what each can carry.
fn divide(rate: u64, caps: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..caps.len()).collect();
    order.sort_by_key(|&i| caps[i]);
    let (mut left, mut out) = (rate, vec![0; caps.len()]);
    for (done, &i) in order.iter().enumerate() {
        let even = left.div_ceil((caps.len() - done) as u64);
        out[i] = even.min(caps[i]);
        left -= out[i];
    }
    out
}

/// Whole cores of a share of the work, one at least.
fn whole_cores(rate: u64, core_rate: u64, percent: u64) -> usize {
    let work = u128::from(rate) * u128::from(percent);
    usize::try_from(work.div_ceil(u128::from(core_rate) * 100))
        .unwrap_or(usize::MAX)
        .max(1)
}

/// The cores of a rail for interrupts, the stack and the application, by how many there are; says what must share.
fn shared_out<'a>(
    name: &str,
    cores: &'a [u32],
    rate: u64,
    core_rate: BitRate,
    explain: &mut Vec<String>,
) -> [&'a [u32]; 3] {
    let need = |percent| whole_cores(rate, core_rate.bps(), percent);
    let (interrupts, stack, application) = (need(40), need(60), need(1));
    if cores.len() >= interrupts + stack + application {
        let (a, rest) = cores.split_at(interrupts);
        let (b, rest) = rest.split_at(stack);
        [a, b, &rest[..application]]
    } else if cores.len() > 1 && cores.len() >= interrupts + stack {
        explain.push(format!(
            "{name}: application and stack share cores: there are {}",
            cores.len()
        ));
        let (a, rest) = cores.split_at(interrupts);
        [a, &rest[..stack], &rest[..stack]]
    } else {
        explain.push(format!(
            "{name}: interrupts, stack and application share {} cores",
            cores.len()
        ));
        [cores; 3]
    }
}

/// As many cores of another node; rails of several cards keep cores of their own there too.
fn cores_there(machine: &Machine, node: u32, rail: &Rail, count: usize) -> Vec<u32> {
    let there = machine.node(node).map(|n| n.cores.as_slice()).unwrap_or_default();
    let from = (rail.number as usize - 1) * count % there.len().max(1);
    let round = there.iter().cycle().skip(from);
    round.take(count.min(there.len())).copied().collect()
}

/// What a person should know about a rail before it is used.
fn say_limits(name: &str, machine: &Machine, rail: &Rail, explain: &mut Vec<String>) {
    let node = rail.node;
    if rail.card.is_some() && rail.card_node.is_none() && machine.nodes.len() > 1 {
        explain.push(format!(
            "{name}: the card's node is not known; node {node} was given to it"
        ));
    }
    if rail.shares_cores {
        explain.push(format!(
            "{name}: other rails use the same core: node {node} has fewer cores than cards"
        ));
    }
}

fn one(
    machine: &Machine,
    rail: &Rail,
    carries: u64,
    rate: u64,
    request: &PlanRequest,
    explain: &mut Vec<String>,
) -> RailPlan {
    let name = format!("rail {} ({})", rail.number, rail.id);
    let other = match request.placement {
        Placement::Local => None,
        Placement::Other => machine.other_node(rail.node),
    };
    let [irq_cores, stack_cores, app_cores] =
        shared_out(&name, &rail.cores, rate, request.core_rate, explain);
    let all = |cores: &[u32]| -> Vec<u32> {
        cores
            .iter()
            .filter_map(|c| machine.core(*c))
            .flat_map(|c| c.pus.iter().copied())
            .collect()
    };
    let mut application = all(app_cores);
    if let Some(node) = other {
        application = all(&cores_there(machine, node, rail, app_cores.len()));
        explain.push(format!(
            "{name}: application and memory on node {node}, away from the card"
        ));
    } else if request.placement == Placement::Other {
        explain.push(format!(
            "{name}: there is no other node: the application stays at node {}",
            rail.node
        ));
    }
    say_limits(&name, machine, rail, explain);
    let window = BitRate::new(rate).map_or(0, |r| r.bytes_in(request.rtt));
    let memory_node = other.unwrap_or(rail.node);
    let memory_bytes = window.saturating_mul(WINDOWS);
    let there = machine.node(memory_node).map_or(0, |n| n.memory_bytes);
    if there > 0 && memory_bytes > there {
        explain.push(format!(
            "{name}: {memory_bytes} bytes of buffers do not fit node {memory_node}, which has {there}"
        ));
    }
    explain.push(format!(
        "{name}: {rate} of {carries} bit/s: interrupts on {irq_cores:?}, stack on {stack_cores:?}, application on {application:?}, \
         buffers of 3 * rate * {} on node {memory_node}",
        request.rtt
    ));
    RailPlan {
        rail: rail.number,
        id: rail.id.clone(),
        interfaces: rail.interfaces.clone(),
        card: rail.card.clone(),
        card_node: rail.card_node,
        rate_bps: rate,
        carries_bps: carries,
        application_node: other.unwrap_or(rail.node),
        application,
        stack: all(stack_cores),
        stack_cores: stack_cores.to_vec(),
        interrupts: all(irq_cores),
        memory_node,
        memory_bytes,
    }
}

/// The row of the paper's table that a plan is.
#[must_use]
pub fn condition(rails: &[RailPlan]) -> Option<Condition> {
    let cards: Option<Vec<u32>> = rails.iter().map(|r| r.card_node).collect();
    let cards = cards.filter(|c| c.len() > 1)?;
    let same = |of: &dyn Fn(&RailPlan) -> u32| rails.windows(2).all(|w| of(&w[0]) == of(&w[1]));
    let spread = cards.windows(2).any(|w| w[0] != w[1]);
    let disjoint = rails.iter().enumerate().all(|(i, a)| {
        rails[..i]
            .iter()
            .all(|b| a.application.iter().all(|pu| !b.application.contains(pu)))
    });
    let pairs = || rails.iter().zip(&cards);
    let memory_at_card = pairs().all(|(r, card)| r.memory_node == *card);
    if memory_at_card && disjoint && pairs().all(|(r, card)| r.application_node == *card) {
        return Some(Condition::A);
    }
    if memory_at_card && pairs().all(|(r, card)| r.application_node != *card) {
        return Some(Condition::B);
    }
    if !spread || !same(&|r| r.memory_node) || !same(&|r| r.application_node) {
        return None;
    }
    let one_core = rails.windows(2).all(|w| w[0].application == w[1].application);
    match (one_core, disjoint) {
        (true, _) => Some(Condition::D),
        (_, true) => Some(Condition::C),
        _ => None,
    }
}

/// What a core of the stack carries, bit/s: it has 60 % of a stream's work where interrupts have cores of their own,
/// else all of it.
fn stack_core_bps(plan: &RailPlan, core_rate: BitRate) -> u64 {
    let apart = plan.stack.iter().all(|pu| !plan.interrupts.contains(pu));
    let percent = if apart { 60 } else { 100 };
    u64::try_from(u128::from(core_rate.bps()) * 100 / percent).unwrap_or(u64::MAX)
}

/// Streams on the planned rails and the lanes that were named.
fn lanes(
    request: &PlanRequest,
    chosen: &[(Rail, u64)],
    planned: &[RailPlan],
    carried_bps: u64,
) -> Result<Option<Solution>, RailError> {
    if request.lanes.is_empty() {
        return Ok(None);
    }
    let cores = planned.iter().map(|r| r.stack_cores.len()).sum::<usize>();
    let streams = request.streams.unwrap_or(cores.max(request.lanes.len()));
    let bad = |e: &dyn std::fmt::Display| RailError::BadInput(format!("--lanes, --streams: {e}"));
    if streams == 0 {
        return Err(bad(&"at least one stream is needed"));
    }
    let capacity = |(rail, _): &(Rail, u64), plan: &RailPlan| RailCapacity {
        card_bps: rail
            .rate_bps
            .or(request.card_rate.map(BitRate::bps))
            .unwrap_or(u64::MAX),
        cores_bps: vec![stack_core_bps(plan, request.core_rate); plan.stack_cores.len()],
    };
    let rails = chosen.iter().zip(planned).map(|(c, p)| capacity(c, p)).collect();
    let demand = carried_bps.div_ceil(streams as u64);
    let lanes = request.lanes.iter().map(|l| l.bps()).collect();
    let problem = Problem::new(rails, lanes, vec![demand; streams], None).map_err(|e| bad(&e))?;
    Ok(Some(solve(&problem)))
}
