//! Replication: jobs of the catalog become orders to nodes.
//!
//! ```text
//!   claim ─> destination, row Writing ─> order ─> node pulls, verifies, flushes ─> row Valid ─> job Done
//!                                          │ fails, node gone, cancelled
//!                                          └─> row dropped ─> job Queued again (at most ATTEMPTS), Failed, Cancelled
//! ```

use std::sync::Arc;
use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_catalog::{ErrorKind, JobKind, JobState, ReplicaState, Timestamp};
use kuroshio_proto::{object_path, v1};
use tokio::sync::{Semaphore, watch};

use crate::convert;
use crate::node::{Known, spread};
use crate::registry::Ended;
use crate::server::Inner;

/// How often jobs are looked for when nobody says that there are some.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the jobs of services that have gone are looked for, in turns of [`LOOK_EVERY`].
const STALE_TURNS: u64 = 10;
/// How long a claim holds unless renewed, milliseconds.
const CLAIM_MS: u64 = 10_000;
/// How often a running job's progress is recorded and its cancellation noticed.
const RENEW_EVERY: Duration = Duration::from_millis(500);
/// Renewals between two records of progress: a record is a durable write.
const RECORD_TURNS: u32 = 6;
/// Times that a job is tried.
const ATTEMPTS: u32 = 5;
/// Pause before a job is tried again, times the attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(300);

/// How a job ended.
enum Outcome {
    Done,
    /// It may go better the next time.
    Again(String),
    Failed(String),
    /// Somebody else has ended it or has it.
    Gone,
}

/// Works at jobs until `stop` says so.
pub async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(inner.config.timing.transfers as usize));
    let mut turn = 0u64;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = inner.registry.woken() => {}
            _ = stop.changed() => return,
        }
        turn += 1;
        if let Err(e) = look(&inner, &slots, turn % STALE_TURNS == 1).await {
            tracing::warn!("jobs: {e}");
        }
    }
}

async fn look(inner: &Arc<Inner>, slots: &Arc<Semaphore>, stale_too: bool) -> Result<(), cat::CatalogError> {
    while slots.available_permits() > 0 {
        if !is_work(inner, stale_too).await? {
            return Ok(());
        }
        let claim = cat::ClaimJobs {
            worker: inner.worker.clone(),
            limit: u32::try_from(slots.available_permits()).unwrap_or(1),
            claim_ms: CLAIM_MS,
        };
        let jobs = inner.try_ask(&inner.service(), claim).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return Ok(());
            };
            let inner = inner.clone();
            tokio::spawn(async move {
                work(&inner, job).await;
                drop(slot);
                inner.registry.wake();
            });
        }
    }
    Ok(())
}

/// Whether there is something to claim: looking costs no durable write, claiming does.
async fn is_work(inner: &Inner, stale_too: bool) -> Result<bool, cat::CatalogError> {
    let list = |state, limit| cat::ListJobs {
        filter: cat::JobFilter {
            state: Some(state),
            ino: None,
        },
        after: None,
        limit,
    };
    if !inner
        .try_ask(&inner.service(), list(JobState::Queued, 1))
        .await?
        .is_empty()
    {
        return Ok(true);
    }
    if !stale_too {
        return Ok(false);
    }
    let now = Timestamp::now();
    let running = inner
        .try_ask(&inner.service(), list(JobState::Running, 1000))
        .await?;
    Ok(running
        .iter()
        .any(|j| j.claimed_until.is_none_or(|until| until < now)))
}

async fn work(inner: &Arc<Inner>, job: cat::Job) {
    let (id, attempts) = (job.id, job.attempts);
    let outcome = match job.what.kind {
        JobKind::Replicate | JobKind::Migrate => match copy(inner, &job).await {
            Ok(outcome) => outcome,
            Err(e) => Outcome::Again(e.text),
        },
        JobKind::Remove => remove(inner, &job).await,
        JobKind::Verify => Outcome::Failed("this service verifies by scrubbing, not by job".into()),
    };
    let (state, error) = match outcome {
        Outcome::Gone => return,
        Outcome::Done => (JobState::Done, None),
        Outcome::Failed(why) => (JobState::Failed, Some(why)),
        Outcome::Again(why) if attempts >= ATTEMPTS => (JobState::Failed, Some(why)),
        Outcome::Again(why) => {
            tokio::time::sleep(RETRY_PAUSE * attempts).await;
            (JobState::Queued, Some(why))
        }
    };
    if let Some(why) = &error {
        tracing::warn!(job = id.0, attempts, "job did not succeed: {why}");
    }
    let finish = cat::FinishJob {
        id,
        worker: inner.worker.clone(),
        state,
        error,
    };
    if let Err(e) = inner.try_ask(&inner.service(), finish).await {
        // Cancelled in between, or the claim has ended: another round finds it.
        tracing::debug!(job = id.0, "cannot finish the job: {e}");
    }
}

async fn remove(inner: &Inner, job: &cat::Job) -> Outcome {
    let Some(node) = job.what.destination.clone() else {
        return Outcome::Failed("no node is named".into());
    };
    let op = cat::RemoveReplica {
        object: job.what.object,
        node,
        below: false,
    };
    match inner.try_ask(&inner.service(), op).await {
        Ok(()) => Outcome::Done,
        Err(e) => Outcome::Failed(e.to_string()),
    }
}

/// Makes one replica.
async fn copy(inner: &Arc<Inner>, job: &cat::Job) -> Result<Outcome, v1::Failure> {
    let object = job.what.object;
    let service = inner.service();
    let fragment = match inner.try_ask(&service, cat::GetFragment { object }).await {
        Ok(fragment) => fragment,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Ok(Outcome::Failed("the content is not there any more".into()));
        }
        Err(e) => return Err(convert::failure(&e)),
    };
    let nodes = inner.nodes().await?;
    let wanted = job.what.destination.clone();
    let destination = wanted.or_else(|| spread(&fragment, &nodes, None, 1).into_iter().next());
    let Some(destination) = destination else {
        return Ok(Outcome::Again("no node takes another replica now".into()));
    };
    match fragment
        .replicas
        .iter()
        .find(|r| r.node == destination)
        .map(|r| r.state)
    {
        Some(ReplicaState::Valid) => return Ok(Outcome::Done),
        // An earlier attempt, by a service that has gone, or a lost row: the node is asked again.
        Some(ReplicaState::Writing | ReplicaState::Lost) => {}
        Some(ReplicaState::Stale | ReplicaState::Removing) => {
            return Ok(Outcome::Again(format!(
                "an old replica is still removed from {destination}"
            )));
        }
        None => {
            let add = cat::AddReplica {
                object,
                node: destination.clone(),
            };
            inner.ask(&service, add).await?;
        }
    }
    let sources = sources(inner, &fragment, &nodes, &destination, job.what.source.as_deref())?;
    if sources.is_empty() {
        drop_row(inner, object, &destination).await;
        return Ok(Outcome::Again("no replica can be read now".into()));
    }
    let order = pull_order(inner, &fragment, sources, &job.owner).await;
    let Some((number, ended)) = inner.registry.order(&destination, Some(job.id.0), order) else {
        drop_row(inner, object, &destination).await;
        return Ok(Outcome::Again(format!("node {destination} is not there")));
    };
    let outcome = follow(inner, job, &destination, number, ended).await;
    match &outcome {
        Outcome::Done => {
            let valid = cat::SetReplica {
                object,
                node: destination.clone(),
                state: ReplicaState::Valid,
                digest: Some(fragment.digest),
            };
            if let Err(e) = inner.try_ask(&service, valid).await {
                // The content went while it was copied, or the row did.
                return Ok(Outcome::Again(e.to_string()));
            }
            if job.what.kind == JobKind::Migrate
                && let Some(source) = job.what.source.clone()
            {
                let op = cat::RemoveReplica {
                    object,
                    node: source,
                    below: false,
                };
                inner.ask(&service, op).await?;
            }
        }
        _ => drop_row(inner, object, &destination).await,
    }
    Ok(outcome)
}

/// A row that came to nothing goes. What the node has of it stays for the next attempt.
async fn drop_row(inner: &Inner, object: cat::ObjectId, node: &str) {
    let drop = cat::DropReplica {
        object,
        node: node.to_owned(),
    };
    if let Err(e) = inner.try_ask(&inner.service(), drop).await {
        tracing::debug!(%object, node, "the row stays: {e}");
    }
}

/// Replicas to read from, best first, each with a token.
fn sources(
    inner: &Inner,
    fragment: &cat::Fragment,
    nodes: &[Known],
    destination: &str,
    only: Option<&str>,
) -> Result<Vec<v1::Place>, v1::Failure> {
    let object = fragment.object;
    let path = object_path(object.ino.0, object.generation.0, object.fragment);
    let token = inner.grant(destination, &format!("storage.read:{path}"))?;
    let site = nodes
        .iter()
        .find(|n| n.node.name == destination)
        .map(|n| n.node.site.clone());
    let mut found = fragment
        .replicas
        .iter()
        .filter(|r| r.state == ReplicaState::Valid && r.node != destination)
        .filter(|r| only.is_none_or(|o| o == r.node))
        .filter_map(|r| nodes.iter().find(|n| n.node.name == r.node && n.gives()))
        .collect::<Vec<_>>();
    if !found.is_empty() {
        let turn = usize::try_from(inner.next()).unwrap_or_default() % found.len();
        found.rotate_left(turn);
    }
    found.sort_by_key(|n| (Some(&n.node.site) != site.as_ref(), n.node.load_milli / 1000));
    let places = found.into_iter().map(|n| v1::Place {
        node: n.node.name.clone(),
        address: n.node.address.clone(),
        pin: n.node.pin.clone(),
        path: path.clone(),
        token: token.clone(),
        up: true,
        state: "valid".into(),
    });
    Ok(places.collect())
}

async fn pull_order(
    inner: &Inner,
    fragment: &cat::Fragment,
    sources: Vec<v1::Place>,
    owner: &str,
) -> v1::Order {
    let object = fragment.object;
    let name = inner.ask(&inner.service(), cat::PathOf { ino: object.ino }).await;
    v1::Order {
        order: 0,
        inode: object.ino.0,
        generation: object.generation.0,
        fragment: object.fragment,
        what: Some(v1::order::What::Pull(v1::Pull {
            size_bytes: fragment.size,
            digest: fragment.digest.0.to_vec(),
            sources,
            rate_bps: 0,
            name: String::from_utf8_lossy(&name.unwrap_or_default()).into_owned(),
            owner: owner.to_owned(),
        })),
    }
}

/// Waits for an order's end, records progress, notices cancellation and a node that goes.
async fn follow(
    inner: &Arc<Inner>,
    job: &cat::Job,
    destination: &str,
    number: u64,
    mut ended: Ended,
) -> Outcome {
    let mut turn = 0u32;
    loop {
        tokio::select! {
            done = &mut ended => {
                return match done {
                    Ok(done) if done.ok => Outcome::Done,
                    Ok(done) => Outcome::Again(format!("node {destination}: {}", done.text)),
                    Err(_) => Outcome::Again(format!("node {destination} has begun anew")),
                };
            }
            () = tokio::time::sleep(RENEW_EVERY) => {}
        }
        // One that speaks to another service by now has forgotten this order.
        if !inner.registry.is_here(destination) {
            inner.registry.cancel(number);
            return Outcome::Again(format!("node {destination} does not answer any more"));
        }
        turn += 1;
        let is_ours = if turn.is_multiple_of(RECORD_TURNS) {
            renew(inner, job).await
        } else {
            still_ours(inner, job).await
        };
        if !is_ours {
            inner.registry.cancel(number);
            return Outcome::Gone;
        }
    }
}

async fn renew(inner: &Inner, job: &cat::Job) -> bool {
    let progress = cat::JobProgress {
        id: job.id,
        worker: inner.worker.clone(),
        done_bytes: inner.registry.progress(job.id.0),
        claim_ms: CLAIM_MS,
    };
    match inner.try_ask(&inner.service(), progress).await {
        Ok(now) => is_ours(inner, &now),
        // A catalog that does not answer has not cancelled anything.
        Err(e) => e.kind().is_retryable(),
    }
}

async fn still_ours(inner: &Inner, job: &cat::Job) -> bool {
    let one = cat::ListJobs {
        filter: cat::JobFilter::default(),
        after: Some(cat::JobId(job.id.0.saturating_sub(1))),
        limit: 1,
    };
    match inner.try_ask(&inner.service(), one).await {
        Ok(found) => found
            .first()
            .is_some_and(|now| now.id == job.id && is_ours(inner, now)),
        Err(e) => e.kind().is_retryable(),
    }
}

fn is_ours(inner: &Inner, now: &cat::Job) -> bool {
    now.state == JobState::Running && now.worker.as_deref() == Some(&inner.worker)
}
