//! Replicas that are not what the catalog knows: reported by readers, found by nodes, looked for by the administrator.
//!
//! ```text
//!   reader: wrong at its end ──report──> order to the node: look for yourself ──damaged──┐
//!   node: scrub, or missing ──damaged────────────────────────────────────────────────────┤
//!                                      row Stale: not read, repaired from another, removed <┘
//! ```
//!
//! A reader's word changes nothing: only the node that has the bytes can say that they are wrong.

use std::sync::Arc;
use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_catalog::{ErrorKind, Generation, Ino, ObjectId, Place, ReplicaState};
use kuroshio_proto::MAX_LIST_ENTRIES;
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_service::Operation;

use crate::convert;
use crate::door::Session;
use crate::server::Inner;
use crate::upkeep::order_for;

/// A node is asked to look at one object at most so often.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

type Answered = Result<Answer, Failure>;

/// A node is to look at an object of its own; what is damaged is given up.
pub async fn suspect(inner: &Arc<Inner>, node: &str, object: ObjectId) {
    if inner.registry.is_ordered(node, object, LOOK_AGAIN) {
        return;
    }
    let Ok(fragment) = inner.try_ask(&inner.service(), cat::GetFragment { object }).await else {
        return;
    };
    let verify = v1::Verify {
        size_bytes: fragment.size,
        digest: fragment.digest.0.to_vec(),
    };
    let order = order_for(object, v1::order::What::Verify(verify));
    let Some((_, ended)) = inner.registry.order(node, order) else {
        return;
    };
    let (inner, node) = (inner.clone(), node.to_owned());
    tokio::spawn(async move {
        if let Ok(done) = ended.await
            && done.damaged
        {
            tracing::warn!(%object, node, "a damaged replica: {}", done.text);
            give_up(&inner, &node, object).await;
            inner.registry.wake();
        }
    });
}

/// A replica does not count any more: it is repaired from another one, and removed.
async fn give_up(inner: &Inner, node: &str, object: ObjectId) {
    let stale = cat::SetReplica {
        object,
        node: node.to_owned(),
        state: ReplicaState::Stale,
        digest: None,
    };
    match inner.try_ask(&inner.service(), stale).await {
        Ok(()) => {}
        // It was to be removed anyway, or its content has gone.
        Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {}
        Err(e) => tracing::warn!(%object, node, "a damaged replica still counts: {e}"),
    }
}

pub fn object_of(name: &v1::ObjectName) -> ObjectId {
    ObjectId {
        ino: Ino(name.inode),
        generation: Generation(name.generation),
        fragment: name.fragment,
    }
}

fn name_of(replica: &cat::NodeReplica) -> v1::ObjectName {
    v1::ObjectName {
        inode: replica.object.ino.0,
        generation: replica.object.generation.0,
        fragment: replica.object.fragment,
        size_bytes: replica.size,
        digest: replica.digest.0.to_vec(),
        file: None,
    }
}

fn check_count(objects: usize) -> Result<(), Failure> {
    if objects <= MAX_LIST_ENTRIES as usize {
        return Ok(());
    }
    let text = format!("{objects} objects; at most {MAX_LIST_ENTRIES} are valid");
    Err(Failure::new(Code::Invalid, text))
}

impl Inner {
    /// A reader found bytes that are not what the catalog knows.
    pub async fn report(self: &Arc<Self>, session: &Session, r: v1::ReportRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let place = Place::path(&r.path);
        let found = self.ask(&session.who.caller, cat::Where { place }).await?;
        let fragment = found.fragments.iter().find(|f| f.object.fragment == r.fragment);
        let valid = |f: &&cat::Fragment| {
            let mut replicas = f.replicas.iter();
            replicas.any(|v| v.node == r.node && v.state == ReplicaState::Valid)
        };
        if let Some(fragment) = fragment.filter(valid) {
            let user = &session.who.caller.user;
            tracing::warn!(user, node = r.node, object = %fragment.object, "a reader reports a wrong replica");
            suspect(self, &r.node, fragment.object).await;
        }
        Ok(Answer::Done(v1::Done {}))
    }

    /// A node has found objects of its own to be damaged or missing.
    pub async fn damaged(&self, session: &Session, r: v1::DamagedRequest) -> Answered {
        let node = session.who.node()?;
        check_count(r.objects.len())?;
        for object in r.objects.iter().map(object_of) {
            tracing::warn!(%object, node, "the node has lost this replica or found it damaged");
            give_up(self, node, object).await;
        }
        self.registry.wake();
        Ok(Answer::Done(v1::Done {}))
    }

    /// Which objects of a node the catalog does not know there, and which it believes to be there.
    pub async fn inventory(&self, session: &Session, r: v1::InventoryRequest) -> Answered {
        let node = session.who.node()?;
        check_count(r.objects.len())?;
        let mut reply = v1::InventoryReply::default();
        for object in r.objects {
            match self.know_object(node, &object, r.adopt).await? {
                Known::Here => {}
                Known::Adopted => reply.adopted += 1,
                Known::Not => {
                    if r.rebuild {
                        self.found.add(node, &object);
                    }
                    reply.unknown.push(v1::ObjectName { file: None, ..object });
                }
            }
        }
        if r.believed {
            let list = cat::ListNodeReplicas {
                node: node.to_owned(),
                state: Some(ReplicaState::Valid),
                after: r.after.as_ref().map(object_of),
                limit: MAX_LIST_ENTRIES,
            };
            let page = self.ask(&self.service(), list).await?;
            reply.believed = page.iter().map(name_of).collect();
        }
        if reply.adopted > 0 {
            self.registry.wake();
        }
        Ok(Answer::Inventory(reply))
    }

    async fn know_object(&self, node: &str, name: &v1::ObjectName, adopt: bool) -> Result<Known, Failure> {
        let object = object_of(name);
        let service = self.service();
        let found = match self.try_ask(&service, cat::GetFragment { object }).await {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Known::Not),
            Err(e) => return Err(convert::failure(&e)),
        };
        let state = found.replicas.iter().find(|v| v.node == node).map(|v| v.state);
        let here = matches!(state, Some(s) if s != ReplicaState::Lost);
        let right = name.size_bytes == found.size && name.digest == found.digest.0;
        if here || !adopt || !right {
            return Ok(if here || state.is_some() {
                Known::Here
            } else {
                Known::Not
            });
        }
        let adopt = cat::AdoptReplica {
            object,
            node: node.to_owned(),
            size: found.size,
            digest: found.digest,
        };
        match self.try_ask(&service, adopt).await {
            Ok(()) => Ok(Known::Adopted),
            // Its content went in between.
            Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => Ok(Known::Not),
            Err(e) => Err(convert::failure(&e)),
        }
    }

    /// Routes with what is given now.
    pub async fn routes(&self) -> Answered {
        let routes = self.ask(&self.service(), cat::ListRoutes {}).await?;
        let granted = self.traffic.granted();
        let routes = routes.into_iter().map(|r| {
            let now = granted.get(&(r.from.clone(), r.to.clone()));
            let (granted_bps, transfers) = now.copied().unwrap_or_default();
            v1::GridRoute {
                from: r.from,
                to: r.to,
                capacity_bps: r.capacity_bps,
                leased_bps: r.leased_bps,
                granted_bps,
                transfers,
            }
        });
        Ok(Answer::Routes(v1::RoutesReply {
            routes: routes.collect(),
        }))
    }
}

/// What the catalog knows of an object on a node.
enum Known {
    Here,
    Adopted,
    Not,
}
