//! Nodes: who is there, which one takes new content, what they report.

use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_catalog::{NodeState, ReplicaState, Timestamp};
use kuroshio_core::replica::DiskLimits;
use kuroshio_core::units::BitRate;
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_service::check_address;

use crate::convert;
use crate::door::Session;
use crate::place::View;
use crate::server::{DEFAULT_SITE, Inner};

/// A heartbeat is answered after so long at the latest, milliseconds.
pub const HEARTBEAT_MS: u64 = 1000;
/// Bytes that stay free on a node beyond what is known of a new content.
pub const MARGIN_BYTES: u64 = 16 * 1024 * 1024;

type Answered = Result<Answer, Failure>;

/// A node of the catalog with what is known of it now.
#[derive(Clone)]
pub struct Known {
    /// As the catalog has it.
    pub node: cat::Node,
    /// Whether it was heard of lately.
    pub live: bool,
    /// Its host's name.
    pub host: String,
    /// Whether it takes nothing new, by its own word.
    pub read_only: bool,
    /// What its disk can do, by its own word.
    pub disk: DiskLimits,
}

impl Known {
    /// Whether it takes a new replica of so many bytes.
    pub fn takes(&self, bytes: u64) -> bool {
        self.live
            && !self.read_only
            && self.node.state == NodeState::Up
            && self.node.free_bytes > bytes.saturating_add(MARGIN_BYTES)
    }

    /// Whether it can be read from.
    pub fn gives(&self) -> bool {
        self.live && self.node.state != NodeState::Lost
    }
}

impl Inner {
    /// All nodes.
    pub async fn nodes(&self) -> Result<Vec<Known>, Failure> {
        let nodes = self.ask(&self.service(), cat::ListNodes {}).await?;
        let known = nodes.into_iter().map(|node| {
            let seen = self.registry.seen(&node.name);
            Known {
                live: self.registry.is_live(&node.name),
                host: seen.as_ref().map(|s| s.host.clone()).unwrap_or_default(),
                read_only: seen.as_ref().is_some_and(|s| s.read_only),
                disk: seen.map(|s| s.disk).unwrap_or_default(),
                node,
            }
        });
        Ok(known.collect())
    }

    /// Nodes for new content: on the writer's host first, then as copies are placed.
    pub async fn choose(
        &self,
        inode: u64,
        bytes: u64,
        near_host: &str,
        avoid: &[String],
    ) -> Result<Vec<cat::Node>, Failure> {
        let nodes = self.nodes().await?;
        let mut fit = View::new(&nodes).takers(inode, bytes, avoid);
        if fit.is_empty() {
            return Err(Failure::new(
                Code::NoNode,
                format!(
                    "none of the grid's {} nodes takes {bytes} bytes now (up, not read-only, with {MARGIN_BYTES} bytes to \
                     spare, and not tried before); see `kuroshio fs node ls`",
                    nodes.len()
                ),
            ));
        }
        fit.sort_by_key(|n| n.host != near_host);
        Ok(fit.into_iter().map(|n| n.node.clone()).collect())
    }

    /// Where new replicas of a fragment go.
    pub fn destinations(
        &self,
        fragment: &cat::Fragment,
        nodes: &[Known],
        wanted: &v1::ReplicateRequest,
    ) -> Result<Vec<String>, Failure> {
        let valid = |name: &str| {
            let mut replicas = fragment.replicas.iter();
            replicas.any(|r| r.node == name && r.state == ReplicaState::Valid)
        };
        if !wanted.nodes.is_empty() {
            for name in &wanted.nodes {
                let Some(known) = nodes.iter().find(|n| n.node.name == *name) else {
                    let text = format!("no node is named `{}`", name.escape_debug());
                    return Err(Failure::new(Code::NoNode, text));
                };
                if !valid(name) && !known.takes(fragment.size) {
                    let state = convert::node_state(known.node.state);
                    let text = format!(
                        "node {name} takes no replica of {} bytes now ({state}, {} bytes free)",
                        fragment.size, known.node.free_bytes
                    );
                    return Err(Failure::new(Code::NoNode, text));
                }
            }
            let missing = wanted.nodes.iter().filter(|n| !valid(n));
            return Ok(missing.cloned().collect());
        }
        let have = count(fragment, ReplicaState::Valid) + count(fragment, ReplicaState::Writing);
        let missing = match wanted.leave.as_str() {
            "" => (wanted.copies as usize).saturating_sub(have),
            _ => 1,
        };
        let chosen = View::new(nodes).place(fragment, missing);
        if chosen.len() < missing {
            let text = format!(
                "{} more copies are asked for, but only {} nodes take one now",
                missing,
                chosen.len()
            );
            return Err(Failure::new(Code::NoNode, text));
        }
        Ok(chosen)
    }

    /// All nodes, for people.
    pub async fn list_nodes(&self) -> Answered {
        let known = self.nodes().await?;
        let now = Timestamp::now().0;
        let nodes = known.into_iter().map(|k| {
            let seen = self.registry.seen(&k.node.name);
            let silent = now.saturating_sub(k.node.heartbeat.0) / 1_000_000;
            let ago = seen.as_ref().map(|s| s.ago.as_millis());
            let state = match (k.node.state, k.live) {
                (NodeState::Up, false) => NodeState::Down,
                (state, _) => state,
            };
            v1::Node {
                name: k.node.name,
                site: k.node.site,
                address: k.node.address,
                pin: k.node.pin,
                state: convert::node_state(state).to_owned(),
                capacity_bytes: k.node.capacity_bytes,
                free_bytes: k.node.free_bytes,
                load_milli: k.node.load_milli,
                joined: k.live && seen.as_ref().is_some_and(|s| s.confirmed),
                objects: seen.map_or(0, |s| s.objects),
                heard_ms_ago: ago.map_or(u64::try_from(silent).unwrap_or_default(), |a| {
                    u64::try_from(a).unwrap_or(u64::MAX)
                }),
                host: k.host,
            }
        });
        Ok(Answer::Nodes(v1::NodesReply {
            nodes: nodes.collect(),
        }))
    }

    /// Changes a node's state.
    pub async fn set_node(&self, session: &Session, r: v1::SetNodeRequest) -> Answered {
        session.who.admin()?;
        let state = convert::parse_node_state(&r.state)?;
        let node = r.name;
        let set = cat::SetNodeState {
            node: node.clone(),
            state,
        };
        self.ask(&session.who.caller, set).await?;
        tracing::info!(node, state = r.state, "node state set");
        self.reckon(&node).await?;
        self.registry.wake();
        self.list_nodes().await
    }

    /// Re-reckons what a change of a node's state means for its replicas.
    pub async fn reckon(&self, node: &str) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let page = cat::ReckonNode {
                node: node.to_owned(),
                after,
                limit: 1000,
            };
            after = self.ask(&self.service(), page).await?;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// A node presents itself.
    pub async fn join(&self, session: &Session, r: v1::JoinRequest) -> Answered {
        let name = session.who.node()?.to_owned();
        let invalid = |text: String| Failure::new(Code::Invalid, text);
        check_address(&r.address).map_err(invalid)?;
        r.pin
            .parse::<kuroshio_service::Pin>()
            .map_err(|e| invalid(format!("pin: {e}")))?;
        let behind = self.is_behind(&name, &r).await?;
        let site = if r.site.is_empty() {
            DEFAULT_SITE.to_owned()
        } else {
            r.site
        };
        if !cat::is_principal(&site) {
            return Err(invalid(format!("`{}` is not a site's name", site.escape_debug())));
        }
        let service = self.service();
        let known = self.ask(&service, cat::ListSites {}).await?;
        if !known.iter().any(|s| s.name == site) {
            let site = cat::Site {
                name: site.clone(),
                note: String::new(),
            };
            self.ask(&service, cat::PutSite { site }).await?;
        }
        let node = cat::Node {
            name: name.clone(),
            site,
            address: r.address,
            pin: r.pin,
            state: NodeState::Up,
            capacity_bytes: r.capacity_bytes,
            free_bytes: r.free_bytes,
            load_milli: 0,
            heartbeat: Timestamp::now(),
            since: Timestamp::now(),
        };
        self.check_spool(&name, &r.spool).await?;
        let report = cat::NodeReport {
            node: name.clone(),
            capacity_bytes: r.capacity_bytes,
            free_bytes: r.free_bytes,
            load_milli: 0,
        };
        let disk = DiskLimits {
            read: BitRate::new(r.disk_read_bps),
            write: BitRate::new(r.disk_write_bps),
        };
        self.registry.join(report.clone(), r.host, r.spool, disk);
        self.registry.set_held(&name, behind);
        // Heard of before it is up: whoever is about to give it up sees one of the two. The other services leave its
        // jobs to this one from now on.
        self.record(true).await?;
        self.ask(&service, cat::PutNode { node }).await?;
        // A node that was down is up again from its first report on.
        let reports = vec![report];
        self.ask(&service, cat::Heartbeat { reports }).await?;
        self.registry.wake();
        tracing::info!(node = name, peer = %session.peer, "node joined");
        Ok(Answer::Join(v1::JoinReply {
            grid: self.identity.name(),
            token_key: self.identity.token_key().to_vec(),
            heartbeat_ms: HEARTBEAT_MS,
            receipt_key: self.master.node_key(&name),
            grant_s: self.config.timing.grant_s,
            services: self.presence.services(),
            behind,
        }))
    }

    /// Whether the catalog is older than what a node has been told, or than what lies in its spool: it is a new one, or
    /// a backup. Numbers that objects bear are not given out again, whatever the answer.
    async fn is_behind(&self, name: &str, r: &v1::JoinRequest) -> Result<bool, Failure> {
        let service = self.service();
        let mut behind = r.held;
        // No object of a grid bears a higher one; a file of that name is foreign.
        if r.highest <= u64::from(u32::MAX) {
            let highest = r.highest;
            let reserved = self.ask(&service, cat::RaiseNumbers { highest }).await?;
            behind |= highest >= reserved;
        }
        let known = self.ask(&service, cat::ListPresence {}).await?;
        let mut known = known
            .iter()
            .filter(|p| p.kind == cat::PresenceKind::Node && p.name == name);
        behind |= known.next().map_or(0, |p| p.beat) < r.beat;
        if behind {
            tracing::warn!(
                node = name,
                "the catalog is older than what this node has: run `kuroshio fs fsck` when all nodes are there"
            );
        }
        Ok(behind)
    }

    /// A node that comes with another spool has lost its disk: what it had is lost, until it is found there
    /// again.
    async fn check_spool(&self, name: &str, spool: &str) -> Result<(), Failure> {
        let known = self.ask(&self.service(), cat::ListPresence {}).await?;
        let known = known
            .into_iter()
            .find(|p| p.kind == cat::PresenceKind::Node && p.name == name);
        let is_another = known.is_some_and(|k| !k.spool.is_empty() && !spool.is_empty() && k.spool != spool);
        if !is_another {
            return Ok(());
        }
        tracing::warn!(node = name, "node has another spool: its replicas are lost");
        let state = NodeState::Lost;
        let set = cat::SetNodeState {
            node: name.to_owned(),
            state,
        };
        self.ask(&self.service(), set).await?;
        self.reckon(name).await
    }

    /// A node lives; it is answered when there is something to do, or after [`HEARTBEAT_MS`].
    pub async fn heartbeat(&self, session: &Session, r: v1::HeartbeatRequest) -> Answered {
        let name = session.who.node()?;
        let Some(notify) = self.registry.heard(name, &r) else {
            return Err(Failure::new(
                Code::Stale,
                "this service has begun anew: join again",
            ));
        };
        let mut reply = self.registry.take_orders(name);
        let (paces, news) = self.traffic.paces(name, &r.orders);
        reply.paces = paces;
        if reply.orders.is_empty() && reply.cancel.is_empty() && !news {
            // Half of the time, so that nodes are heard of twice before they may count as down.
            let wait = Duration::from_millis(HEARTBEAT_MS);
            let _ = tokio::time::timeout(wait, notify.notified()).await;
            reply = self.registry.take_orders(name);
            reply.paces = self.traffic.paces(name, &r.orders).0;
        }
        Ok(Answer::Heartbeat(reply))
    }

    /// A node tells how an order ended.
    pub async fn order_done(&self, session: &Session, r: v1::OrderDoneRequest) -> Answered {
        let name = session.who.node()?;
        // Nobody may wait for it any more: then a later order finds what was done.
        self.registry.end(name, r);
        Ok(Answer::Done(v1::Done {}))
    }
}

fn count(fragment: &cat::Fragment, state: ReplicaState) -> usize {
    fragment.replicas.iter().filter(|r| r.state == state).count()
}
