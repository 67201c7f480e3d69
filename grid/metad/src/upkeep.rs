//! What goes on without being asked: heartbeats into the catalog, nodes that go and come back, repair up to
//! the wanted number of replicas, removal, drain, forgotten drafts.
//!
//! Of several services each records and clears the nodes that speak to it; what concerns the whole grid (silent
//! nodes, repair) is done by the one whose turn it is ([`crate::turn`]).

use std::sync::Arc;
use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_catalog::{NodeState, ReplicaState, Timestamp};
use kuroshio_proto::v1;
use tokio::sync::watch;

use crate::node::Known;
use crate::repair::Repair;
use crate::server::Inner;

/// How often upkeep looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Turns between two looks for dead contents.
const REAP_TURNS: u64 = 2;
/// How long this service's rights to read stand if it does not look again, milliseconds.
const HOLD_MS: u64 = 15_000;
/// Rows that are looked at in one turn.
const PAGE: u32 = 256;
/// An order to remove that was not answered for so long is given again.
const REMOVE_LIMIT: Duration = Duration::from_secs(20);
/// Ended jobs are kept for so long: a week, in nanoseconds.
const KEEP_JOBS_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;
/// Turns between two looks for ended jobs: ten minutes.
const PRUNE_TURNS: u64 = 1200;

/// Looks until `stop` says so.
pub async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let mut turn = 0u64;
    let mut repair = Repair::new(&inner.config);
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = inner.registry.woken() => {}
            _ = stop.changed() => return,
        }
        turn += 1;
        if let Err(e) = look(&inner, &mut repair, turn).await {
            tracing::warn!("upkeep: {e}");
        }
    }
}

async fn look(inner: &Arc<Inner>, repair: &mut Repair, turn: u64) -> Result<(), v1::Failure> {
    let service = inner.service();
    let leads = inner.leads().await?;
    // First of all what was heard: after an outage of the catalog the records are older than the nodes' silence.
    inner.record(false).await?;
    let nodes = inner.nodes().await?;
    let back = |n: &Known| n.node.state == NodeState::Down && inner.registry.is_here(&n.node.name);
    if nodes.iter().any(back) {
        inner.record(true).await?;
    }
    if leads {
        for node in &nodes {
            watch_node(inner, node).await?;
        }
    }
    for node in nodes.iter().filter(|n| inner.registry.is_here(&n.node.name)) {
        clear(inner, node).await?;
    }
    if leads {
        repair.look(inner, &nodes).await?;
    }
    if turn.is_multiple_of(REAP_TURNS) {
        let reap = cat::Reap {
            limit: PAGE,
            ttl_ms: HOLD_MS,
        };
        inner.ask(&service, reap).await?;
    }
    for draft in inner
        .registry
        .old_drafts(Duration::from_secs(inner.config.timing.grant_s))
    {
        inner.ask(&service, cat::Release { handle: draft.handle }).await?;
    }
    if leads && turn.is_multiple_of(PRUNE_TURNS) {
        let prune = cat::PruneJobs {
            before: Timestamp(Timestamp::now().0.saturating_sub(KEEP_JOBS_NS)),
            limit: PAGE,
        };
        inner.ask(&service, prune).await?;
    }
    Ok(())
}

/// A silent node is down, and lost after a while: its replicas are then made anew.
async fn watch_node(inner: &Arc<Inner>, known: &Known) -> Result<(), v1::Failure> {
    if known.live {
        return Ok(());
    }
    // It may have gone to another service a moment ago.
    inner.listen().await?;
    let node = &known.node;
    if inner.registry.is_live(&node.name) {
        return Ok(());
    }
    // By this service's own clock, which does not jump; a restart begins anew.
    let silent = inner.registry.silent_for(&node.name);
    let lost_after = Duration::from_secs(inner.config.timing.lost_after_s);
    let state = match node.state {
        NodeState::Lost => return Ok(()),
        _ if silent > lost_after => NodeState::Lost,
        NodeState::Up => NodeState::Down,
        // Drained and read-only nodes stay so when they come back.
        NodeState::Down | NodeState::Drain | NodeState::ReadOnly => return Ok(()),
    };
    let set = cat::SetNodeState {
        node: node.name.clone(),
        state,
    };
    inner.ask(&inner.service(), set).await?;
    // A node that joined meanwhile has told so before it was set up: either that is seen now, or it comes later
    // and then has the last word.
    inner.listen().await?;
    if inner.registry.is_live(&node.name) {
        let up = cat::SetNodeState {
            node: node.name.clone(),
            // Drained and read-only nodes stay so.
            state: match node.state {
                NodeState::Drain | NodeState::ReadOnly => node.state,
                _ => NodeState::Up,
            },
        };
        inner.ask(&inner.service(), up).await?;
        return Ok(());
    }
    tracing::warn!(
        node = node.name,
        state = crate::convert::node_state(state),
        "node does not answer"
    );
    inner.reckon(&node.name).await
}

/// Replicas of a live node that are to go, or that came back with it.
async fn clear(inner: &Arc<Inner>, known: &Known) -> Result<(), v1::Failure> {
    let name = &known.node.name;
    for state in [ReplicaState::Removing, ReplicaState::Stale, ReplicaState::Lost] {
        for replica in replicas(inner, name, state).await? {
            if inner.registry.is_ordered(name, replica.object, REMOVE_LIMIT) {
                continue;
            }
            match state {
                ReplicaState::Lost => check_returned(inner, name, &replica),
                _ => order_removal(inner, name, replica.object),
            }
        }
    }
    if known.node.state == NodeState::Drain {
        for replica in replicas(inner, name, ReplicaState::Valid).await? {
            let remove = cat::RemoveReplica {
                object: replica.object,
                node: name.clone(),
                below: false,
            };
            // Refused as long as there are not enough elsewhere; repair makes them.
            let _ = inner.ask(&inner.service(), remove).await;
        }
    }
    Ok(())
}

pub async fn replicas(
    inner: &Inner,
    node: &str,
    state: ReplicaState,
) -> Result<Vec<cat::NodeReplica>, v1::Failure> {
    let list = cat::ListNodeReplicas {
        node: node.to_owned(),
        state: Some(state),
        after: None,
        limit: PAGE,
    };
    inner.ask(&inner.service(), list).await
}

/// Orders the bytes removed; the row goes when the node says that they are gone.
fn order_removal(inner: &Arc<Inner>, node: &str, object: cat::ObjectId) {
    let order = order_for(object, v1::order::What::Remove(true));
    let Some((_, ended)) = inner.registry.order(node, order) else {
        return;
    };
    let (inner, node) = (inner.clone(), node.to_owned());
    tokio::spawn(async move {
        match ended.await {
            Ok(done) if done.ok => {
                let drop = cat::DropReplica { object, node };
                if let Err(e) = inner.try_ask(&inner.service(), drop).await {
                    tracing::debug!(%object, "the row stays: {e}");
                }
            }
            Ok(done) => tracing::warn!(%object, node, "cannot remove: {}", done.text),
            Err(_) => {}
        }
    });
}

/// A node that was lost is back: what it still has is verified and counts again.
fn check_returned(inner: &Arc<Inner>, node: &str, replica: &cat::NodeReplica) {
    let object = replica.object;
    let pull = v1::Pull {
        size_bytes: replica.size,
        digest: replica.digest.0.to_vec(),
        ..v1::Pull::default()
    };
    let order = order_for(object, v1::order::What::Pull(pull));
    let Some((_, ended)) = inner.registry.order(node, order) else {
        return;
    };
    let (inner, node, digest) = (inner.clone(), node.to_owned(), replica.digest);
    tokio::spawn(async move {
        let Ok(done) = ended.await else {
            return;
        };
        let changed = if done.ok {
            let valid = cat::SetReplica {
                object,
                node: node.clone(),
                state: ReplicaState::Valid,
                digest: Some(digest),
            };
            inner.try_ask(&inner.service(), valid).await
        } else {
            let drop = cat::DropReplica {
                object,
                node: node.clone(),
            };
            inner.try_ask(&inner.service(), drop).await
        };
        if let Err(e) = changed {
            tracing::debug!(%object, node, "a replica that came back: {e}");
        }
    });
}

pub fn order_for(object: cat::ObjectId, what: v1::order::What) -> v1::Order {
    v1::Order {
        order: 0,
        inode: object.ino.0,
        generation: object.generation.0,
        fragment: object.fragment,
        what: Some(what),
    }
}
