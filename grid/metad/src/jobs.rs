//! Replication: jobs of the catalog become orders to nodes.
//!
//! ```text
//!   claim ─> destination, row Writing ─> traffic ─> nodes pull, verify, flush ─> row Valid ─> job Done
//!                                           │ fails, node gone, cancelled
//!                                           └─> row dropped ─> job Queued again (at most ATTEMPTS), Failed, Cancelled
//! ```

use std::sync::Arc;
use std::time::Duration;

use kuroshio_catalog as cat;
use kuroshio_catalog::{ErrorKind, JobKind, JobState, ReplicaState, Timestamp};
use kuroshio_proto::v1;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::node::Known;
use crate::place::View;
use crate::server::Inner;
use crate::traffic::rules::weight_of;
use crate::traffic::{End, Wanted};
use crate::{convert, damage};

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
/// Jobs that are claimed for each transfer that may run: the traffic's plan chooses among them, so that a slow disk or
/// a full route does not hold the others.
const CLAIMS_PER_TRANSFER: usize = 4;
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
    let claims = CLAIMS_PER_TRANSFER * inner.config.timing.transfers as usize;
    let slots = Arc::new(Semaphore::new(claims));
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
    // Of one that another has the catalog sees whether it is still renewed, whatever the clocks say.
    let theirs = |j: &cat::Job| j.worker.as_ref().is_some_and(|w| *w != inner.worker);
    Ok(running
        .iter()
        .any(|j| theirs(j) || j.claimed_until.is_none_or(|until| until < now)))
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
    let routes = inner.ask(&service, cat::ListRoutes {}).await?;
    let wanted = job.what.destination.clone();
    let destination = wanted.or_else(|| {
        // An order goes to a node that speaks to this service.
        let here = |k: &&Known| inner.registry.is_here(&k.node.name);
        let here: Vec<Known> = nodes.iter().filter(here).cloned().collect();
        View::new(&here).place(&fragment, 1).into_iter().next()
    });
    let Some(destination) = destination else {
        return Ok(Outcome::Again("no node takes another replica now".into()));
    };
    match fragment
        .replicas
        .iter()
        .find(|r| r.node == destination)
        .map(|r| r.state)
    {
        Some(ReplicaState::Valid) => return finish_move(inner, job).await,
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
    let outcome = match wanted_of(inner, job, fragment.clone(), &destination, &nodes, &routes).await {
        None => Outcome::Again("no replica can be read now".into()),
        Some(wanted) => match inner.traffic.add(wanted, &nodes, &routes) {
            Ok(ended) => follow(inner, job, ended).await,
            Err(why) => Outcome::Again(why),
        },
    };
    if !matches!(outcome, Outcome::Done) {
        drop_row(inner, object, &destination).await;
        return Ok(outcome);
    }
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
    finish_move(inner, job).await
}

/// The new replica is there: of a migration the old one goes.
async fn finish_move(inner: &Inner, job: &cat::Job) -> Result<Outcome, v1::Failure> {
    if job.what.kind == JobKind::Migrate
        && let Some(source) = job.what.source.clone()
    {
        let op = cat::RemoveReplica {
            object: job.what.object,
            node: source,
            below: false,
        };
        inner.ask(&inner.service(), op).await?;
        inner.registry.wake();
    }
    Ok(Outcome::Done)
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

/// What is to be moved from where; `None` when no copy can be read.
async fn wanted_of(
    inner: &Inner,
    job: &cat::Job,
    fragment: cat::Fragment,
    destination: &str,
    nodes: &[Known],
    routes: &[cat::Route],
) -> Option<Wanted> {
    let reader = (Some(destination), "");
    let found = View::new(nodes).sources(&fragment, reader, routes);
    // The one that moves away may serve, as any other.
    let best = found.iter().find(|(k, _)| k.node.name != destination)?.1;
    let sources = found.iter().filter(|(k, _)| k.node.name != destination);
    let sources = sources
        .map(|(k, near)| (k.node.name.clone(), *near == best))
        .collect();
    let file = inner.facts_of(job.what.object.ino).await;
    Some(Wanted {
        job: job.id.0,
        fragment,
        destination: destination.to_owned(),
        sources,
        weight: weight_of(job.what.priority),
        file: v1::FileFacts {
            path: file.path,
            owner: file.owner,
            group: file.group,
            mode: file.mode,
            fragments: file.fragments,
            mtime_ns: file.mtime_ns.unwrap_or_default(),
            kept_ns: 0,
        },
    })
}

/// Waits for the traffic's end, records progress, notices cancellation by another service.
async fn follow(inner: &Arc<Inner>, job: &cat::Job, mut ended: oneshot::Receiver<End>) -> Outcome {
    let mut turn = 0u32;
    loop {
        tokio::select! {
            end = &mut ended => {
                return match end {
                    Ok(End::Done) => Outcome::Done,
                    Ok(End::Failed { why, suspects }) => {
                        for node in suspects {
                            damage::suspect(inner, &node, job.what.object).await;
                        }
                        Outcome::Again(why)
                    }
                    // Called off here.
                    Err(_) => Outcome::Gone,
                };
            }
            () = tokio::time::sleep(RENEW_EVERY) => {}
        }
        turn += 1;
        let is_ours = if turn.is_multiple_of(RECORD_TURNS) {
            renew(inner, job).await
        } else {
            still_ours(inner, job).await
        };
        if !is_ours {
            inner.traffic.cancel(job.id.0);
            return Outcome::Gone;
        }
    }
}

async fn renew(inner: &Inner, job: &cat::Job) -> bool {
    let progress = cat::JobProgress {
        id: job.id,
        worker: inner.worker.clone(),
        done_bytes: inner.traffic.progress(inner, job.id.0).bytes,
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
