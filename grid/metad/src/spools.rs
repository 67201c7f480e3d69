//! What all nodes do at once for the administrator: compare their spools with the catalog, or try their disks.
//!
//! ```text
//!   Look ──> nodes tell, the catalog adopts ──> (held, or asked for) files are made anew: `rebuild`
//!        ──> held nodes: Look with settle ──> files of which nothing is left are named
//! ```

use std::sync::Arc;
use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure, order::What};

use crate::door::Session;
use crate::node::Known;
use crate::server::Inner;

/// Longest look into a spool.
const LOOK_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Largest file of a disk bench, bytes.
const MAX_BENCH_BYTES: u64 = 1 << 40;
/// Paths of files without a copy that are told, and fragments that are looked at for them.
const MAX_GONE: usize = 100;
const MAX_SHORT: u64 = 100_000;

type Answered = Result<Answer, Failure>;

impl Inner {
    /// Nodes compare their spools with the catalog, or try their disks, all at once.
    pub async fn spools(self: &Arc<Self>, session: &Session, r: v1::SpoolsRequest) -> Answered {
        session.who.admin()?;
        if r.bench_bytes > MAX_BENCH_BYTES {
            let text = format!("{} bytes: at most {MAX_BENCH_BYTES} are valid", r.bench_bytes);
            return Err(Failure::new(Code::Invalid, text));
        }
        if r.snapshot {
            let taken = self.take_snapshot(true).await?;
            return Ok(Answer::Spools(v1::SpoolsReply {
                snapshot: Some(taken),
                ..v1::SpoolsReply::default()
            }));
        }
        let nodes = self.nodes().await?;
        if let Some(name) = r.nodes.iter().find(|n| nodes.iter().all(|k| k.node.name != **n)) {
            let text = format!("no node is named `{}`", name.escape_debug());
            return Err(Failure::new(Code::NoNode, text));
        }
        let meant = |k: &&Known| r.nodes.is_empty() || r.nodes.contains(&k.node.name);
        let nodes: Vec<Known> = nodes.iter().filter(meant).cloned().collect();
        let mut reply = v1::SpoolsReply::default();
        if r.bench_bytes > 0 {
            let bytes = r.bench_bytes;
            reply.nodes = self.at_nodes(&nodes, |_| What::Bench(v1::Bench { bytes })).await;
            return Ok(Answer::Spools(reply));
        }
        let held = |node: &str| self.registry.is_held(node);
        let rebuild = r.rebuild || nodes.iter().any(|k| held(&k.node.name));
        let gathering = if rebuild { Some(self.found.begin()?) } else { None };
        let look = |node: &str| {
            What::Look(v1::Look {
                deep: r.deep,
                rebuild: r.rebuild || held(node),
                all: r.rebuild,
                settle: false,
            })
        };
        reply.nodes = self.at_nodes(&nodes, look).await;
        if let Some(gathering) = gathering {
            self.rebuild(gathering.take(), &mut reply).await;
            if !reply.more {
                self.settle(&nodes, &mut reply.nodes).await;
            }
        }
        for node in &mut reply.nodes {
            node.held = held(&node.node);
        }
        if reply.nodes.iter().any(|n| n.lost > 0) || rebuild {
            self.name_gone(&mut reply).await?;
        }
        self.registry.wake();
        Ok(Answer::Spools(reply))
    }

    /// Gives an order to each node and waits for all.
    async fn at_nodes(&self, nodes: &[Known], what: impl Fn(&str) -> What) -> Vec<v1::NodeSpool> {
        let ordered = nodes.iter().map(|known| {
            let order = v1::Order {
                what: Some(what(&known.node.name)),
                ..v1::Order::default()
            };
            let ordered = self.registry.order(&known.node.name, order);
            (known, ordered.map(|(_, ended)| ended))
        });
        let ordered: Vec<_> = ordered.collect();
        let mut told = Vec::with_capacity(ordered.len());
        for (known, ended) in ordered {
            let mut node = v1::NodeSpool {
                node: known.node.name.clone(),
                site: known.node.site.clone(),
                capacity_bytes: known.node.capacity_bytes,
                ..v1::NodeSpool::default()
            };
            let done = match ended {
                Some(ended) => tokio::time::timeout(LOOK_LIMIT, ended)
                    .await
                    .ok()
                    .and_then(Result::ok),
                None => None,
            };
            match done {
                None => node.text = "the node is not there".into(),
                Some(done) => {
                    (node.ok, node.text) = (done.ok, done.text);
                    (node.objects, node.adopted, node.lost) = (done.objects, done.adopted, done.lost);
                    node.unknown = done.unknown;
                    (node.read_bps, node.write_bps) = (done.read_bps, done.write_bps);
                }
            }
            told.push(node);
        }
        told
    }

    /// Nodes that held what nobody knew and have told of all of it put the rest aside.
    async fn settle(&self, nodes: &[Known], told: &mut [v1::NodeSpool]) {
        let held = |k: &&Known| {
            let name = &k.node.name;
            self.registry.is_held(name) && told.iter().any(|t| t.node == *name && t.ok)
        };
        let held: Vec<Known> = nodes.iter().filter(held).cloned().collect();
        let settle = v1::Look {
            settle: true,
            ..v1::Look::default()
        };
        for done in self.at_nodes(&held, |_| What::Look(settle)).await {
            let Some(node) = told.iter_mut().find(|t| t.node == done.node) else {
                continue;
            };
            if done.ok {
                self.registry.set_held(&done.node, false);
                node.unknown = done.unknown;
            } else {
                (node.ok, node.text) = (false, done.text);
            }
        }
    }

    /// Files of which no node that is there has a copy.
    async fn name_gone(&self, reply: &mut v1::SpoolsReply) -> Result<(), Failure> {
        let service = self.service();
        let (mut after, mut looked, mut files) = (None, 0, std::collections::BTreeSet::new());
        while looked < MAX_SHORT {
            let list = cat::ListOffCopies {
                balance: cat::CopyBalance::Short,
                after,
                limit: 1000,
            };
            let page = self.ask(&service, list).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.fragment.object);
            looked += page.len() as u64;
            let none = |o: &&cat::OffCopies| {
                let mut replicas = o.fragment.replicas.iter();
                replicas.all(|r| r.state != cat::ReplicaState::Valid)
            };
            files.extend(page.iter().filter(none).map(|o| o.fragment.object.ino));
        }
        reply.gone = files.len() as u64;
        for ino in files.into_iter().take(MAX_GONE) {
            if let Ok(path) = self.ask(&service, cat::PathOf { ino }).await {
                reply.gone_paths.push(path);
            }
        }
        Ok(())
    }
}
