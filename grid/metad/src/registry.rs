//! What is known of the nodes right now, and the orders they work at. All of it is lost with the process and
//! found again: nodes present themselves anew, jobs are taken over, drafts are committed by their tokens.
//!
//! A node speaks to one service; the others know of it by [`crate::presence`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_catalog::{Draft, NodeReport, ObjectId, Presence, PresenceKind};
use kuroshio_core::replica::DiskLimits;
use kuroshio_proto::v1;
use tokio::sync::{Notify, oneshot};

/// Drafts that are remembered; older ones are committed by their token alone.
const MAX_DRAFTS: usize = 65_536;
/// Several processes have so long to write a file together.
const SHARED_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Orders that wait for one node.
const MAX_QUEUE: usize = 4096;

/// A node that has presented itself to this process.
struct Live {
    heard: Instant,
    host: String,
    spool: String,
    objects: u64,
    read_only: bool,
    report: NodeReport,
    disk: DiskLimits,
    /// How often the catalog has recorded it, as far as this service knows; 0: not known yet.
    beat: u64,
    /// It keeps what nobody knows: the catalog has lost its memory.
    held: bool,
    /// Heard since its report was taken.
    fresh: bool,
    queue: VecDeque<v1::Order>,
    cancel: Vec<u64>,
    notify: Arc<Notify>,
}

/// An order that a node has.
struct Flight {
    node: String,
    object: ObjectId,
    bytes_done: u64,
    since: Instant,
    ended: Option<oneshot::Sender<v1::OrderDoneRequest>>,
}

/// A draft that several processes write together.
struct SharedDraft {
    generation: u64,
    base: u64,
    user: String,
    count: u32,
    since: Instant,
}

/// How an order ends.
pub type Ended = oneshot::Receiver<v1::OrderDoneRequest>;

#[derive(Default)]
struct State {
    live: HashMap<String, Live>,
    orders: HashMap<u64, Flight>,
    drafts: HashMap<(u64, u64), (Draft, Instant)>,
    /// Drafts of several processes by inode.
    shared: HashMap<u64, SharedDraft>,
    next_order: u64,
    /// Nodes that another service has recorded.
    elsewhere: HashMap<String, Elsewhere>,
    /// When the records were read last.
    learned: Option<Instant>,
}

/// A node that speaks to another service.
struct Elsewhere {
    presence: Presence,
    /// When its record was seen to change, or first seen.
    changed: Instant,
    /// Whether it was seen to change.
    confirmed: bool,
}

/// What is known right now.
pub struct Registry {
    state: Mutex<State>,
    wake: Notify,
    started: Instant,
    down_after: Duration,
}

/// What a person is told of a live node.
pub struct Seen {
    /// Time since it was heard of.
    pub ago: Duration,
    /// Its host's name.
    pub host: String,
    /// Objects that it keeps.
    pub objects: u64,
    /// Whether it takes nothing new, by its own word.
    pub read_only: bool,
    /// Whether it was really heard of, not only found in the records of an earlier life.
    pub confirmed: bool,
    /// What its disk can do, by its own word.
    pub disk: DiskLimits,
}

impl Registry {
    /// Nothing is known yet.
    pub fn new(down_after: Duration) -> Self {
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            started: Instant::now(),
            down_after,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something may be to be done: jobs and upkeep look now.
    pub fn wake(&self) {
        self.wake.notify_waiters();
    }

    /// Until somebody wakes.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// A node presents itself; orders that an earlier life of it had are given up.
    pub fn join(&self, report: NodeReport, host: String, spool: String, disk: DiskLimits) {
        let mut state = self.state();
        let name = report.node.clone();
        state.orders.retain(|_, f| f.node != name);
        let live = Live {
            heard: Instant::now(),
            host,
            spool,
            objects: 0,
            read_only: false,
            report,
            disk,
            beat: 0,
            held: false,
            fresh: true,
            queue: VecDeque::new(),
            cancel: Vec::new(),
            notify: Arc::default(),
        };
        state.live.insert(name, live);
    }

    /// A node lives. Gives what wakes it when there is an order; `None` if it has not joined this process.
    pub fn heard(&self, node: &str, beat: &v1::HeartbeatRequest) -> Option<Arc<Notify>> {
        let mut state = self.state();
        for progress in &beat.orders {
            if let Some(flight) = state.orders.get_mut(&progress.order)
                && flight.node == node
            {
                flight.bytes_done = progress.bytes_done;
            }
        }
        let live = state.live.get_mut(node)?;
        live.heard = Instant::now();
        live.fresh = true;
        live.objects = beat.objects;
        live.read_only = beat.read_only;
        live.report = NodeReport {
            node: node.to_owned(),
            capacity_bytes: beat.capacity_bytes,
            free_bytes: beat.free_bytes,
            load_milli: beat.load_milli,
        };
        Some(live.notify.clone())
    }

    /// What a node shall do now.
    pub fn take_orders(&self, node: &str) -> v1::HeartbeatReply {
        let mut state = self.state();
        let Some(live) = state.live.get_mut(node) else {
            return v1::HeartbeatReply::default();
        };
        live.heard = Instant::now();
        v1::HeartbeatReply {
            orders: live.queue.drain(..).collect(),
            cancel: std::mem::take(&mut live.cancel),
            paces: Vec::new(),
            beat: live.beat,
        }
    }

    /// Takes in how often the catalog has recorded the nodes that speak to this service.
    pub fn set_beats(&self, records: &[Presence]) {
        let mut state = self.state();
        for record in records.iter().filter(|r| r.kind == PresenceKind::Node) {
            if let Some(live) = state.live.get_mut(&record.name) {
                live.beat = record.beat;
            }
        }
    }

    /// Whether a node keeps what nobody knows.
    pub fn set_held(&self, node: &str, held: bool) {
        if let Some(live) = self.state().live.get_mut(node) {
            live.held = held;
        }
    }

    /// Whether a node keeps what nobody knows.
    pub fn is_held(&self, node: &str) -> bool {
        self.state().live.get(node).is_some_and(|l| l.held)
    }

    /// Whether a node is there, here or at another service. One that is not known yet is, for a while after the
    /// start.
    pub fn is_live(&self, node: &str) -> bool {
        self.silent_for(node) < self.down_after
    }

    /// How long nothing was heard of a node, here or at another service, by this process's own clock and not
    /// longer than it runs.
    pub fn silent_for(&self, node: &str) -> Duration {
        let state = self.state();
        let here = state.live.get(node).map(|l| l.heard);
        let elsewhere = state.elsewhere.get(node).map(|e| e.changed);
        here.max(elsewhere).unwrap_or(self.started).elapsed()
    }

    /// Whether a node speaks to this service.
    pub fn is_here(&self, node: &str) -> bool {
        let state = self.state();
        let live = state.live.get(node);
        live.is_some_and(|l| l.heard.elapsed() < self.down_after)
    }

    /// What is known of a node.
    pub fn seen(&self, node: &str) -> Option<Seen> {
        let state = self.state();
        let here = state.live.get(node);
        let elsewhere = state.elsewhere.get(node);
        // A node that has moved was heard there later.
        match (here, elsewhere) {
            (Some(l), other) if other.is_none_or(|e| e.changed <= l.heard) => Some(Seen {
                ago: l.heard.elapsed(),
                host: l.host.clone(),
                objects: l.objects,
                read_only: l.read_only,
                disk: l.disk,
                confirmed: true,
            }),
            (_, Some(e)) => Some(Seen {
                ago: e.changed.elapsed(),
                host: e.presence.host.clone(),
                objects: e.presence.objects,
                read_only: e.presence.closed,
                // Of its disk its own service knows.
                disk: DiskLimits::default(),
                confirmed: e.confirmed,
            }),
            _ => None,
        }
    }

    /// A node's heartbeat is answered now: there is something to tell.
    pub fn nudge(&self, node: &str) {
        if let Some(live) = self.state().live.get(node) {
            live.notify.notify_one();
        }
    }

    /// Takes in what all services have recorded; what `me` has recorded is known already.
    pub fn learn(&self, me: &str, records: Vec<Presence>) {
        let mut state = self.state();
        let now = Instant::now();
        let deaf = state.learned.replace(now);
        if deaf.is_some_and(|at| now.duration_since(at) > self.down_after / 2) {
            // The catalog was away: nothing could be heard, and that is not their silence.
            for known in state.elsewhere.values_mut() {
                known.changed = now;
            }
        }
        for presence in records {
            if presence.kind != PresenceKind::Node || presence.via == me {
                continue;
            }
            match state.elsewhere.get_mut(&presence.name) {
                Some(known) if known.presence.beat == presence.beat => {}
                Some(known) => {
                    *known = Elsewhere {
                        presence,
                        changed: now,
                        confirmed: true,
                    };
                }
                None => {
                    let name = presence.name.clone();
                    // At the start, or a node that has moved: it has time to be heard of again.
                    let elsewhere = Elsewhere {
                        presence,
                        changed: now,
                        confirmed: false,
                    };
                    state.elsewhere.insert(name, elsewhere);
                }
            }
        }
    }

    /// What nodes have said since this was asked last: for the catalog, by this service's name.
    pub fn reports(&self, me: &str) -> (Vec<NodeReport>, Vec<Presence>) {
        let mut state = self.state();
        let nodes = state.live.iter_mut();
        let fresh = nodes.filter_map(|(name, l)| {
            let presence = Presence {
                kind: PresenceKind::Node,
                name: name.clone(),
                via: me.to_owned(),
                beat: 0,
                host: l.host.clone(),
                spool: l.spool.clone(),
                objects: l.objects,
                closed: l.read_only,
            };
            std::mem::take(&mut l.fresh).then(|| (l.report.clone(), presence))
        });
        fresh.unzip()
    }

    /// Gives an order to a node; `None` if it is not there or has too many.
    pub fn order(&self, node: &str, mut order: v1::Order) -> Option<(u64, Ended)> {
        let mut state = self.state();
        state.next_order += 1;
        let number = state.next_order;
        order.order = number;
        let object = object_of(&order);
        let live = state.live.get_mut(node)?;
        if live.heard.elapsed() >= self.down_after || live.queue.len() >= MAX_QUEUE {
            return None;
        }
        live.queue.push_back(order);
        live.notify.notify_one();
        let (ended, ends) = oneshot::channel();
        let flight = Flight {
            node: node.to_owned(),
            object,
            bytes_done: 0,
            since: Instant::now(),
            ended: Some(ended),
        };
        state.orders.insert(number, flight);
        Some((number, ends))
    }

    /// Whether a node works at an object, by an order younger than `limit`.
    pub fn is_ordered(&self, node: &str, object: ObjectId, limit: Duration) -> bool {
        let state = self.state();
        let mut flights = state.orders.values();
        flights.any(|f| f.node == node && f.object == object && f.since.elapsed() < limit)
    }

    /// Tells a node to stop working at an order, and forgets it.
    pub fn cancel(&self, number: u64) {
        let mut state = self.state();
        let Some(flight) = state.orders.remove(&number) else {
            return;
        };
        if let Some(live) = state.live.get_mut(&flight.node) {
            let queued = live.queue.len();
            live.queue.retain(|o| o.order != number);
            if live.queue.len() == queued {
                live.cancel.push(number);
                live.notify.notify_one();
            }
        }
    }

    /// A node tells how an order ended; whoever waits for it hears.
    pub fn end(&self, node: &str, done: v1::OrderDoneRequest) -> bool {
        let flight = {
            let mut state = self.state();
            match state.orders.get(&done.order) {
                Some(flight) if flight.node == node => state.orders.remove(&done.order),
                _ => None,
            }
        };
        let ended = flight.and_then(|f| f.ended);
        ended.is_some_and(|tx| tx.send(done).is_ok())
    }

    /// Orders under way.
    pub fn orders(&self) -> usize {
        self.state().orders.len()
    }

    /// Payload bytes that an order has moved.
    pub fn order_bytes(&self, number: u64) -> u64 {
        self.state().orders.get(&number).map_or(0, |f| f.bytes_done)
    }

    /// Remembers a draft until its commit.
    pub fn keep_draft(&self, draft: Draft) {
        let mut state = self.state();
        if state.drafts.len() < MAX_DRAFTS {
            let key = (draft.ino.0, draft.generation.0);
            state.drafts.insert(key, (draft, Instant::now()));
        }
    }

    /// The draft that several processes write together: the one that is begun, if it is of the same content, user and
    /// number of fragments; else this one. Its generation.
    pub fn join_draft(&self, draft: Draft, user: &str, count: u32) -> Result<u64, String> {
        let mut state = self.state();
        state.shared.retain(|_, s| s.since.elapsed() < SHARED_LIMIT);
        if let Some(s) = state.shared.get(&draft.ino.0)
            && s.base == draft.base.0
        {
            if (s.user.as_str(), s.count) != (user, count) {
                return Err(format!(
                    "{} fragments of it are written by {} now",
                    s.count, s.user
                ));
            }
            return Ok(s.generation);
        }
        if state.shared.len() >= MAX_DRAFTS {
            return Err("too many files are written by several processes now".into());
        }
        let shared = SharedDraft {
            generation: draft.generation.0,
            base: draft.base.0,
            user: user.to_owned(),
            count,
            since: Instant::now(),
        };
        state.shared.insert(draft.ino.0, shared);
        let key = (draft.ino.0, draft.generation.0);
        state.drafts.insert(key, (draft, Instant::now()));
        Ok(key.1)
    }

    /// The draft of a content, for its commit.
    pub fn take_draft(&self, inode: u64, generation: u64) -> Option<Draft> {
        self.state().drafts.remove(&(inode, generation)).map(|(d, _)| d)
    }

    /// Drafts that nobody committed in time.
    pub fn old_drafts(&self, age: Duration) -> Vec<Draft> {
        let mut state = self.state();
        let old = state.drafts.extract_if(|_, (_, since)| since.elapsed() > age);
        old.map(|(_, (draft, _))| draft).collect()
    }
}

fn object_of(order: &v1::Order) -> ObjectId {
    ObjectId {
        ino: kuroshio_catalog::Ino(order.inode),
        generation: kuroshio_catalog::Generation(order.generation),
        fragment: order.fragment,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: &str) -> NodeReport {
        NodeReport {
            node: node.into(),
            capacity_bytes: 1,
            free_bytes: 1,
            load_milli: 0,
        }
    }

    #[test]
    fn orders_go_to_their_node_and_end_once() {
        let registry = Registry::new(Duration::from_secs(60));
        assert!(registry.order("n1", v1::Order::default()).is_none());
        registry.join(report("n1"), String::new(), String::new(), DiskLimits::default());
        registry.join(report("n2"), String::new(), String::new(), DiskLimits::default());
        let (number, mut ends) = registry.order("n1", v1::Order::default()).expect("taken");
        assert!(registry.take_orders("n2").orders.is_empty());
        assert_eq!(registry.take_orders("n1").orders.len(), 1);
        let done = v1::OrderDoneRequest {
            order: number,
            ok: true,
            ..Default::default()
        };
        assert!(!registry.end("n2", done.clone()), "another node cannot end it");
        assert!(registry.end("n1", done.clone()));
        assert!(ends.try_recv().expect("told").ok);
        assert!(!registry.end("n1", done));
    }

    #[test]
    fn a_node_of_another_service_lives_while_its_record_changes() {
        let limit = Duration::from_millis(400);
        let registry = Registry::new(limit);
        let record = |beat, via: &str| Presence {
            kind: PresenceKind::Node,
            name: "n1".into(),
            via: via.into(),
            beat,
            host: "h".into(),
            spool: "s".into(),
            objects: 3,
            closed: false,
        };
        registry.learn("me", vec![record(7, "me")]);
        assert!(registry.seen("n1").is_none(), "its own record tells nothing");
        registry.learn("me", vec![record(7, "other")]);
        assert!(
            registry
                .seen("n1")
                .is_some_and(|s| !s.confirmed && s.objects == 3)
        );
        let began = Instant::now();
        while registry.is_live("n1") {
            registry.learn("me", vec![record(7, "other")]);
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "a record that stands still is no life"
            );
            std::thread::yield_now();
        }
        registry.learn("me", vec![record(8, "other")]);
        assert!(registry.is_live("n1") && !registry.is_here("n1"));
        // Whoever could not listen cannot tell silence.
        let began = Instant::now();
        while registry.is_live("n1") {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody reads any more");
            std::thread::yield_now();
        }
        registry.learn("me", vec![record(8, "other")]);
        assert!(registry.is_live("n1"), "the records could not be read meanwhile");
        assert!(registry.seen("n1").is_some_and(|s| s.confirmed));
    }

    #[test]
    fn a_cancelled_order_is_taken_back_or_called_off() {
        let registry = Registry::new(Duration::from_secs(60));
        registry.join(report("n1"), String::new(), String::new(), DiskLimits::default());
        let (first, _ends) = registry.order("n1", v1::Order::default()).expect("taken");
        registry.cancel(first);
        let reply = registry.take_orders("n1");
        assert!(reply.orders.is_empty() && reply.cancel.is_empty());
        let (second, _ends) = registry.order("n1", v1::Order::default()).expect("taken");
        assert_eq!(registry.take_orders("n1").orders.len(), 1);
        registry.cancel(second);
        assert_eq!(registry.take_orders("n1").cancel, [second]);
    }
}
