//! Repair and balance: [`Keeper`] decides, durable jobs carry it out.
//!
//! ```text
//!   catalog: what is short of its rule ──page──> Keeper ──Copy──> job (replicate) ──> traffic
//!                                                  ^  └──Cancel─> job cancelled         │
//!                                                  └──────── copied(ok or not) ─────────┘
//! ```
//!
//! The keeper knows only what the catalog says is short, a page at a time, and forgets it when it is not any more; what
//! failed comes again after a rest that doubles. Copies beyond a rule stay: somebody asked for them. When nothing is
//! short and balancing is on, it is shown a page of the fullest node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuroshio_catalog as cat;
use kuroshio_catalog::{JobKind, JobState, NodeState, ReplicaState};
use kuroshio_core::replica::{Action, Copy, CopyId, Fragment, FragmentId, Keeper, KeeperConfig, Reason};
use kuroshio_core::units::{PicoDuration, PicoTime};
use kuroshio_proto::v1;

use crate::config::Config;
use crate::node::Known;
use crate::place::{Names, SEED, fragment_id};
use crate::server::Inner;
use crate::upkeep::replicas;

/// Fragments that are looked at in one turn.
const PAGE: u32 = 256;
/// First rest of a fragment whose repair failed.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between two looks for something to balance.
const BALANCE_EVERY: Duration = Duration::from_secs(5);
/// Orders to one node at once.
const PER_NODE: usize = 4;

/// What is under way for a copy.
struct Ordered {
    job: cat::JobId,
    fragment: FragmentId,
}

/// Keeps what the catalog says is short.
pub struct Repair {
    keeper: Keeper,
    names: Names,
    epoch: Instant,
    ordered: BTreeMap<CopyId, Ordered>,
    /// Fragments that the keeper knows.
    known: BTreeMap<FragmentId, cat::ObjectId>,
    balanced: Option<Instant>,
    balances: bool,
}

impl Repair {
    /// Nothing is known yet.
    pub fn new(config: &Config) -> Self {
        let percent = u64::from(config.replication.balance_percent);
        let keeper = KeeperConfig {
            repair_delay: PicoDuration::from_secs(config.timing.lost_after_s),
            rate: config.replication.repair_rate(),
            max_copies: 2 * config.timing.transfers as usize,
            max_copies_per_node: PER_NODE,
            retry_after: PicoDuration::from_std(RETRY),
            balance_permille: (percent > 0).then_some(percent * 10),
            seed: SEED,
        };
        Self {
            keeper: Keeper::new(keeper, PicoTime::ZERO),
            names: Names::default(),
            epoch: Instant::now(),
            ordered: BTreeMap::new(),
            known: BTreeMap::new(),
            balanced: None,
            balances: percent > 0,
        }
    }

    fn now(&self) -> PicoTime {
        PicoTime::ZERO + PicoDuration::from_std(self.epoch.elapsed())
    }

    /// One turn.
    pub async fn look(&mut self, inner: &Arc<Inner>, nodes: &[Known]) -> Result<(), v1::Failure> {
        for known in nodes {
            let now = self.now();
            let node = self.names.known(known);
            if known.node.state == NodeState::Lost {
                self.keeper.forget_node(node.id, now);
            } else if let Err(e) = self.keeper.set_node(node, now) {
                tracing::warn!(node = known.node.name, "repair: {e}");
            }
        }
        self.ended(inner).await?;
        let short = self.tell(inner).await?;
        if self.balances && !short && self.ordered.is_empty() {
            self.show_fullest(inner, nodes).await?;
        }
        let mut begun = 0u32;
        loop {
            let now = self.now();
            match self.keeper.poll(now) {
                None => break,
                Some(Action::Copy(copy)) => begun += u32::from(self.order(inner, &copy).await?),
                Some(Action::Cancel(copy)) => {
                    if let Some(ordered) = self.ordered.remove(&copy) {
                        inner.traffic.cancel(ordered.job.0);
                        inner
                            .ask(&inner.service(), cat::CancelJob { id: ordered.job })
                            .await?;
                    }
                }
                // Copies beyond a rule stay, and what moved was removed by its job.
                Some(Action::Remove { fragment, node }) => self.keeper.removed(fragment, node, false, now),
            }
        }
        if begun > 0 {
            tracing::info!(jobs = begun, "repair begins");
            inner.registry.wake();
        }
        Ok(())
    }

    /// Tells the keeper of jobs that have ended.
    async fn ended(&mut self, inner: &Inner) -> Result<(), v1::Failure> {
        let open: Vec<(CopyId, cat::JobId)> = self.ordered.iter().map(|(c, o)| (*c, o.job)).collect();
        for (copy, job) in open {
            let one = cat::ListJobs {
                filter: cat::JobFilter::default(),
                after: Some(cat::JobId(job.0.saturating_sub(1))),
                limit: 1,
            };
            let found = inner
                .ask(&inner.service(), one)
                .await?
                .into_iter()
                .find(|j| j.id == job);
            let ok = match found.map(|j| j.state) {
                Some(JobState::Queued | JobState::Running) => continue,
                Some(JobState::Done) => true,
                Some(JobState::Failed | JobState::Cancelled) | None => false,
            };
            let now = self.now();
            self.keeper.copied(copy, ok, now);
            self.ordered.remove(&copy);
        }
        Ok(())
    }

    /// Tells the keeper what is short now; whether anything is.
    async fn tell(&mut self, inner: &Inner) -> Result<bool, v1::Failure> {
        let list = cat::ListOffCopies {
            balance: cat::CopyBalance::Short,
            after: None,
            limit: PAGE,
        };
        let page = inner.ask(&inner.service(), list).await?;
        let mut seen = BTreeSet::new();
        for off in &page {
            let id = fragment_id(off.fragment.object);
            let begins = !self.known.contains_key(&id);
            if begins && has_open_job(inner, off.fragment.object).await? {
                // Somebody has asked for it already.
                continue;
            }
            self.set(&off.fragment, &off.rule);
            seen.insert(id);
        }
        // What is beyond a full page is not known to be well.
        let last = page.last().map(|o| fragment_id(o.fragment.object));
        let full = page.len() == PAGE as usize;
        let moves: BTreeSet<FragmentId> = self.ordered.values().map(|o| o.fragment).collect();
        let stays = |id: &FragmentId| {
            let beyond = full && last.is_some_and(|l| *id > l);
            seen.contains(id) || beyond || (page.is_empty() && moves.contains(id))
        };
        let gone: Vec<FragmentId> = self.known.keys().filter(|id| !stays(id)).copied().collect();
        for id in gone {
            let now = self.now();
            self.known.remove(&id);
            self.keeper.forget_fragment(id, now);
        }
        Ok(!page.is_empty())
    }

    fn set(&mut self, fragment: &cat::Fragment, rule: &cat::CopyRule) {
        let valid = fragment
            .replicas
            .iter()
            .filter(|r| r.state == ReplicaState::Valid);
        let held = Fragment {
            size_bytes: fragment.size,
            rule: self.names.rule(rule),
            copies: valid.map(|r| self.names.node(&r.node)).collect(),
        };
        let (id, now) = (fragment_id(fragment.object), self.now());
        match self.keeper.set_fragment(id, &held, now) {
            Ok(()) => {
                self.known.insert(id, fragment.object);
            }
            Err(e) => tracing::warn!(object = %fragment.object, "repair: {e}"),
        }
    }

    /// Makes a copy that the keeper wants a job; whether there is one now.
    async fn order(&mut self, inner: &Inner, copy: &Copy) -> Result<bool, v1::Failure> {
        let Some(object) = self.known.get(&copy.fragment).copied() else {
            return Ok(false);
        };
        let source = copy.leaves.map(|n| self.names.node_name(n).to_owned());
        let kind = match copy.reason {
            Reason::Missing => JobKind::Replicate,
            Reason::Balance | Reason::Migrate => JobKind::Migrate,
        };
        let job = cat::NewJob {
            kind,
            object,
            source,
            destination: Some(self.names.node_name(copy.to).to_owned()),
            priority: 0,
        };
        let made = inner
            .try_ask(&inner.service(), cat::AddJobs { jobs: vec![job] })
            .await;
        match made.map(|jobs| jobs.first().map(|j| j.id)) {
            Ok(Some(job)) => {
                let fragment = copy.fragment;
                self.ordered.insert(copy.id, Ordered { job, fragment });
                Ok(true)
            }
            // The content went meanwhile, or there are too many jobs: it rests.
            other => {
                tracing::debug!(%object, "no job: {:?}", other.err().map(|e| e.to_string()));
                let now = self.now();
                self.keeper.copied(copy.id, false, now);
                Ok(false)
            }
        }
    }

    /// Shows the keeper a page of the fullest node.
    async fn show_fullest(&mut self, inner: &Inner, nodes: &[Known]) -> Result<(), v1::Failure> {
        if self.balanced.is_some_and(|at| at.elapsed() < BALANCE_EVERY) {
            return Ok(());
        }
        self.balanced = Some(Instant::now());
        let up = nodes
            .iter()
            .filter(|n| n.takes(0) || (n.live && n.node.state == NodeState::Up));
        let fill = |n: &&Known| {
            let used = n.node.capacity_bytes.saturating_sub(n.node.free_bytes);
            u128::from(used) * 1000 / u128::from(n.node.capacity_bytes.max(1))
        };
        let Some(fullest) = up.max_by_key(fill) else {
            return Ok(());
        };
        for replica in replicas(inner, &fullest.node.name, ReplicaState::Valid).await? {
            let object = replica.object;
            let service = inner.service();
            let Ok(fragment) = inner.try_ask(&service, cat::GetFragment { object }).await else {
                continue;
            };
            let stat = cat::Stat {
                place: cat::Place::ino(object.ino),
                follow: false,
            };
            // Its last name may have gone since.
            if let Ok(attr) = inner.try_ask(&service, stat).await {
                self.set(&fragment, &attr.copies);
            }
        }
        Ok(())
    }
}

async fn has_open_job(inner: &Inner, object: cat::ObjectId) -> Result<bool, v1::Failure> {
    for state in [JobState::Queued, JobState::Running] {
        let list = cat::ListJobs {
            filter: cat::JobFilter {
                state: Some(state),
                ino: Some(object.ino),
            },
            after: None,
            limit: PAGE,
        };
        let jobs = inner.ask(&inner.service(), list).await?;
        if jobs.iter().any(|j| j.what.object == object) {
            return Ok(true);
        }
    }
    Ok(false)
}
