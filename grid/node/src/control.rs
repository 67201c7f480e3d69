//! The node's side of the control plane: joins, tells that it lives, takes orders.
//!
//! ```text
//!   away ──connect, join──> joined ──heartbeat ─> orders ─> threads ─> order_done ──┐
//!     ^────────── connection lost, service began anew ─────────────────<────────────┘
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kuroshio_client::v1::{self, order::What};
use kuroshio_client::{ClientError, Grid, host_name};
use kuroshio_proto::objects_audience;
use kuroshio_service::{Ticket, Verifier};
use kuroshio_store::{Mode, ObjectId, StoreError};

use crate::config::NodeConfig;
use crate::flow::Flow;
use crate::server::{Joined, Shared};
use crate::{inventory, look, pull, scrub};

/// Pause before the first attempt to connect again; doubled up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Orders that are worked at at once. The metadata service plans fewer pulls, so that looks and removals have a place.
const WORKERS: usize = 12;

/// What this node says of itself.
pub struct Me {
    /// The node's folder.
    pub dir: PathBuf,
    /// What it was given, with the services that it was told of since.
    pub ticket: Mutex<Ticket>,
    pub site: String,
    pub address: String,
    pub pin: String,
    /// What its disk can read and write, at frame level; 0 is not known.
    pub disk_bps: (u64, u64),
}

type Running = Arc<Mutex<HashMap<u64, Arc<Flow>>>>;

/// Joins and serves until the node stops.
pub fn run(shared: &Arc<Shared>, me: &Me) {
    let mut pause = FIRST_PAUSE;
    while !shared.is_stopping() {
        match session(shared, me) {
            Ok(()) => pause = FIRST_PAUSE,
            Err(e) => {
                tracing::warn!("metadata service: {e}; trying again");
                thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// One life of the connection; `Ok` when it is to be opened again at once.
fn session(shared: &Arc<Shared>, me: &Me) -> Result<(), ClientError> {
    let ticket = me.ticket.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let grid = Arc::new(Grid::connect(&ticket)?);
    let (capacity, free) = space(shared);
    let highest = shared.store.highest_number();
    let reply = grid.join(v1::JoinRequest {
        site: me.site.clone(),
        address: me.address.clone(),
        pin: me.pin.clone(),
        capacity_bytes: capacity,
        free_bytes: free,
        host: host_name(),
        spool: shared
            .store
            .spool_id()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect(),
        disk_read_bps: me.disk_bps.0,
        disk_write_bps: me.disk_bps.1,
        beat: shared.memory.beat(),
        held: shared.memory.is_held(),
        highest,
    })?;
    shared.memory.joined(reply.behind, highest);
    let joined = Joined {
        verifier: Verifier::for_audience(&reply.token_key, &reply.grid, &objects_audience(&reply.grid)),
        receipt_key: reply.receipt_key,
    };
    // Key and name of a grid never change; a second life of the service gives the same.
    let _ = shared.joined.set(joined);
    tracing::info!(grid = grid.address(), "joined");
    keep_ticket(me, &ticket, grid.ticket());
    let running = Running::default();
    thread::scope(|scope| {
        let (orders, waiting) = mpsc::channel::<v1::Order>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..WORKERS {
            let (grid, running, waiting) = (grid.clone(), running.clone(), waiting.clone());
            scope.spawn(move || work(shared, &grid, &running, &waiting));
        }
        let (over, is_over) = mpsc::channel::<()>();
        let grant = Duration::from_secs(reply.grant_s);
        let looker = grid.clone();
        scope.spawn(move || inventory::run(shared, &looker, grant, &is_over));
        let (scrub_over, is_scrub_over) = mpsc::channel::<()>();
        let (scrubber, stop) = (grid.clone(), kuroshio_store::Stop::default());
        let ends = stop.clone();
        scope.spawn(move || scrub::run(shared, &scrubber, &ends, &is_scrub_over));
        let ended = beat(shared, &grid, &running, &orders);
        stop.stop();
        drop((over, scrub_over));
        // The queue's end ends the workers; what they work at is called off.
        drop(orders);
        for flow in lock(&running).values() {
            flow.stop();
        }
        ended
    })
}

/// Keeps the addresses of services that the grid has told, so that a restart finds them.
fn keep_ticket(me: &Me, had: &Ticket, now: Ticket) {
    if *had == now {
        return;
    }
    if let Err(e) = NodeConfig::save_ticket(&me.dir, &now) {
        tracing::warn!("the ticket cannot be kept: {e}");
    }
    *me.ticket.lock().unwrap_or_else(PoisonError::into_inner) = now;
}

fn lock(running: &Running) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Flow>>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Heartbeats until the service is away or the node stops.
fn beat(
    shared: &Shared,
    grid: &Grid,
    running: &Running,
    orders: &mpsc::Sender<v1::Order>,
) -> Result<(), ClientError> {
    while !shared.is_stopping() {
        let (capacity_bytes, free_bytes) = space(shared);
        let progress = lock(running)
            .iter()
            .map(|(order, flow)| v1::OrderProgress {
                order: *order,
                bytes_done: flow.cancel.bytes(),
                serial: flow.used(),
            })
            .collect();
        let state = v1::HeartbeatRequest {
            capacity_bytes,
            free_bytes,
            load_milli: load_milli(),
            objects: shared.store.status().map_or(0, |s| s.objects),
            orders: progress,
            read_only: shared.store.mode() != Mode::Normal,
        };
        // Leases in the answer count from here.
        let sent = Instant::now();
        let reply = match grid.heartbeat(state) {
            Ok(reply) => reply,
            Err(e) if e.code() == Some(v1::Code::Stale) => return Ok(()),
            Err(e) => return Err(e),
        };
        shared.memory.told(reply.beat);
        for order in reply.cancel {
            if let Some(flow) = lock(running).get(&order) {
                flow.stop();
            }
        }
        for pace in reply.paces {
            if let Some(flow) = lock(running).get(&pace.order) {
                flow.set(&pace, sent);
            }
        }
        for order in reply.orders {
            lock(running).insert(order.order, Arc::new(Flow::new(&order, sent)));
            // The workers live as long as this queue.
            let _ = orders.send(order);
        }
    }
    Ok(())
}

/// Capacity and free bytes of the spool.
fn space(shared: &Shared) -> (u64, u64) {
    let status = shared.store.status();
    status.map_or((0, 0), |s| (s.capacity_bytes, s.free_bytes))
}

/// Load average of one minute, thousandths.
fn load_milli() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|l| l.parse::<f64>().ok());
    load.map_or(0, |l| (l * 1000.0) as u32)
}

fn work(shared: &Shared, grid: &Grid, running: &Running, waiting: &Mutex<mpsc::Receiver<v1::Order>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(order) = next else {
            return;
        };
        let known = lock(running).get(&order.order).cloned();
        let flow = known.unwrap_or_else(|| Arc::new(Flow::new(&order, Instant::now())));
        let mut done = v1::OrderDoneRequest {
            order: order.order,
            inode: order.inode,
            generation: order.generation,
            fragment: order.fragment,
            ..v1::OrderDoneRequest::default()
        };
        match carry_out(shared, grid, &order, &flow, &mut done) {
            Ok(()) => {
                done.ok = true;
                done.bytes = flow.cancel.bytes();
            }
            Err(why) => done.text = why,
        }
        lock(running).remove(&order.order);
        if !done.ok {
            tracing::warn!(order = order.order, "order failed: {}", done.text);
        }
        if let Err(e) = grid.order_done(done) {
            tracing::warn!(order = order.order, "cannot tell that the order ended: {e}");
        }
    }
}

fn carry_out(
    shared: &Shared,
    grid: &Grid,
    order: &v1::Order,
    flow: &Flow,
    done: &mut v1::OrderDoneRequest,
) -> Result<(), String> {
    let id = object_id(order.inode, order.generation, order.fragment)?;
    match &order.what {
        Some(What::Pull(wanted)) => match pull::run(shared, id, wanted, flow) {
            Ok(complete) => {
                done.complete = complete;
                Ok(())
            }
            Err(failed) => {
                done.damaged = failed.damaged;
                Err(failed.text)
            }
        },
        Some(What::Remove(_)) => {
            done.removed = true;
            match shared.store.delete(id) {
                Ok(()) | Err(StoreError::NotFound(_)) => Ok(()),
                Err(e) => Err(e.to_string()),
            }
        }
        Some(What::Verify(wanted)) => {
            let digest = <[u8; 32]>::try_from(wanted.digest.as_slice());
            let digest = digest.map_err(|_| format!("a digest of {} bytes", wanted.digest.len()))?;
            done.damaged = !pull::is_right(shared, id, wanted.size_bytes, digest);
            if done.damaged {
                return Err("it is not what the catalog knows, or not here".into());
            }
            Ok(())
        }
        Some(What::Bench(bench)) => {
            let rates = look::bench(shared, bench.bytes, &flow.cancel)?;
            (done.write_bps, done.read_bps) = rates;
            Ok(())
        }
        Some(What::Look(look)) => look::run(shared, grid, look, &flow.cancel, done),
        None => Err("an order that this node does not know".into()),
    }
}

/// The spool's name of an object.
pub fn object_id(inode: u64, generation: u64, fragment: u32) -> Result<ObjectId, String> {
    let generation = u32::try_from(generation).map_err(|_| {
        format!(
            "generation {generation} is beyond what a spool can name ({})",
            u32::MAX
        )
    })?;
    Ok(ObjectId {
        inode,
        generation,
        fragment,
    })
}
