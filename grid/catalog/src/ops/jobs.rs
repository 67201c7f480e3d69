//! Durable jobs; see [`crate::Job`] for the states.

use super::Tx;
use super::grid::ttl_ns;
use super::inode::WRITE;
use crate::limits::{MAX_NEW_JOBS, MAX_OPEN_JOBS, MAX_PAGE};
use crate::sql::{R, Row, p, refuse};
use crate::{
    CatalogError, ClaimJobs, ErrorKind, FinishJob, Generation, Ino, Job, JobId, JobKind, JobProgress,
    JobState, ListJobs, NewJob, ObjectId, Role, Timestamp,
};
use std::time::Duration;

fn kind_number(kind: JobKind) -> i64 {
    match kind {
        JobKind::Replicate => 0,
        JobKind::Migrate => 1,
        JobKind::Remove => 2,
        JobKind::Verify => 3,
    }
}

fn kind_of(n: i64) -> Result<JobKind, CatalogError> {
    Ok(match n {
        0 => JobKind::Replicate,
        1 => JobKind::Migrate,
        2 => JobKind::Remove,
        3 => JobKind::Verify,
        _ => {
            return Err(CatalogError::new(
                ErrorKind::Corrupt,
                format!("a job of kind {n}"),
            ));
        }
    })
}

const QUEUED: i64 = 0;
const RUNNING: i64 = 1;

fn state_number(state: JobState) -> i64 {
    match state {
        JobState::Queued => QUEUED,
        JobState::Running => RUNNING,
        JobState::Done => 2,
        JobState::Failed => 3,
        JobState::Cancelled => 4,
    }
}

fn state_of(n: i64) -> Result<JobState, CatalogError> {
    Ok(match n {
        QUEUED => JobState::Queued,
        RUNNING => JobState::Running,
        2 => JobState::Done,
        3 => JobState::Failed,
        4 => JobState::Cancelled,
        _ => {
            return Err(CatalogError::new(
                ErrorKind::Corrupt,
                format!("a job in state {n}"),
            ));
        }
    })
}

macro_rules! columns {
    () => {
        "id, kind, ino, ogen, idx, source, destination, priority, owner, state, done, total, attempts, worker, \
         error, created, updated, claimed"
    };
}

/// Whether the service `?2` may claim a job: none other hears the destination, or nobody does any more.
macro_rules! within_reach {
    () => {
        " AND (destination IS NULL OR NOT EXISTS (SELECT 1 FROM presence p, node n WHERE p.kind = 0 \
         AND p.name = job.destination AND n.name = p.name AND p.via <> ?2 AND n.state NOT IN (1, 4)))"
    };
}

fn job_of(r: &Row) -> R<Job> {
    let object = ObjectId {
        ino: Ino(r.num(2)?),
        generation: Generation(r.num(3)?),
        fragment: r.num(4)?,
    };
    let what = NewJob {
        kind: kind_of(r.int(1)?)?,
        object,
        source: r.opt_text(5)?,
        destination: r.opt_text(6)?,
        priority: r.num(7)?,
    };
    Ok(Job {
        id: JobId(r.num(0)?),
        what,
        owner: r.text(8)?,
        state: state_of(r.int(9)?)?,
        done_bytes: r.num(10)?,
        total_bytes: r.num(11)?,
        attempts: r.num(12)?,
        worker: r.opt_text(13)?,
        error: r.opt_text(14)?,
        created: Timestamp(r.int(15)?),
        updated: Timestamp(r.int(16)?),
        claimed_until: r.opt(17)?.map(Timestamp),
    })
}

impl Tx<'_> {
    fn job_locked(&mut self, id: JobId) -> R<Job> {
        super::check_number("job", id.0)?;
        match self.one(
            concat!("SELECT ", columns!(), " FROM job WHERE id = ?1 {lock}"),
            p![id.0],
        )? {
            Some(row) => job_of(&row),
            None => refuse(ErrorKind::NotFound, format!("job {id} is not known")),
        }
    }

    fn save_job(&mut self, job: &mut Job) -> R<()> {
        job.updated = self.now;
        self.x(
            "UPDATE job SET state = ?2, done = ?3, attempts = ?4, worker = ?5, error = ?6, updated = ?7, \
             claimed = ?8 WHERE id = ?1",
            p![
                job.id.0,
                state_number(job.state),
                job.done_bytes,
                job.attempts,
                job.worker.as_ref(),
                job.error.as_ref(),
                job.updated.0,
                job.claimed_until.map(|t| t.0)
            ],
        )?;
        Ok(())
    }

    // ---- making ----------------------------------------------------------------------------------------

    pub(super) fn add_jobs(&mut self, jobs: &[NewJob]) -> R<Vec<Job>> {
        if jobs.len() > MAX_NEW_JOBS {
            return refuse(ErrorKind::Limit, format!("at most {MAX_NEW_JOBS} jobs at once"));
        }
        let sizes: Vec<u64> = jobs.iter().map(|j| self.check_job(j)).collect::<R<_>>()?;
        let open: u64 = self
            .one("SELECT COUNT(*) FROM job WHERE state IN (0, 1)", p![])?
            .map_or(Ok(0), |r| r.num(0))?;
        if open + jobs.len() as u64 > MAX_OPEN_JOBS {
            return refuse(
                ErrorKind::Limit,
                format!("at most {MAX_OPEN_JOBS} jobs are queued or running"),
            );
        }
        jobs.iter()
            .zip(sizes)
            .map(|(job, total)| self.add_job(job, total))
            .collect()
    }

    /// The size of the job's fragment, if the caller may ask for it.
    fn check_job(&mut self, job: &NewJob) -> R<u64> {
        let o = job.object;
        super::check_number("inode", o.ino.0)?;
        super::check_number("generation", o.generation.0)?;
        let Some(inode) = self.find(o.ino)? else {
            return refuse(ErrorKind::NotFound, format!("object {o}: no content has it"));
        };
        if self.caller.role == Role::User {
            let place = crate::Place::ino(o.ino);
            if !self.owns(&inode)? {
                self.need(&inode, WRITE, &place)?;
            }
        }
        for node in [&job.source, &job.destination].into_iter().flatten() {
            self.node(node)?;
        }
        let sql = "SELECT size FROM fragment WHERE ino = ?1 AND idx = ?2 AND ogen = ?3 LIMIT 1";
        match self.one(sql, p![o.ino.0, o.fragment, o.generation.0])? {
            Some(row) => Ok(row.num(0)?),
            None => refuse(ErrorKind::NotFound, format!("object {o}: no content has it")),
        }
    }

    fn add_job(&mut self, new: &NewJob, total: u64) -> R<Job> {
        let o = new.object;
        let same = self.q(
            concat!(
                "SELECT ",
                columns!(),
                " FROM job WHERE ino = ?1 AND ogen = ?2 AND idx = ?3 AND kind = ?4 AND state IN (0, 1) ORDER BY id"
            ),
            p![o.ino.0, o.generation.0, o.fragment, kind_number(new.kind)],
        )?;
        for row in &same {
            let job = job_of(row)?;
            if job.what.destination == new.destination {
                return Ok(job);
            }
        }
        let id = self.new_id()?;
        self.x(
            "INSERT INTO job (id, kind, ino, ogen, idx, source, destination, priority, owner, state, done, total, \
             attempts, created, updated) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, 0, ?10, 0, ?11, ?11)",
            p![
                id, kind_number(new.kind), o.ino.0, o.generation.0, o.fragment, new.source.as_ref(),
                new.destination.as_ref(), i64::from(new.priority), &self.caller.user, total, self.now.0
            ],
        )?;
        Ok(Job {
            id: JobId(id),
            what: new.clone(),
            owner: self.caller.user.clone(),
            state: JobState::Queued,
            done_bytes: 0,
            total_bytes: total,
            attempts: 0,
            worker: None,
            error: None,
            created: self.now,
            updated: self.now,
            claimed_until: None,
        })
    }

    // ---- working ---------------------------------------------------------------------------------------

    pub(super) fn claim_jobs(&mut self, op: &ClaimJobs) -> R<Vec<Job>> {
        self.need_service("jobs")?;
        super::check_page(op.limit)?;
        super::check_principal("worker", &op.worker)?;
        let until = Timestamp(self.now.0.saturating_add(ttl_ns(op.claim_ms)?));
        let ended = self.q(
            concat!(
                "SELECT ",
                columns!(),
                " FROM job WHERE state = 1 AND claimed <= ?3",
                within_reach!(),
                " ORDER BY priority DESC, id LIMIT ?1 {skip}"
            ),
            p![op.limit, &op.worker, self.now.0],
        )?;
        let queued = self.q(
            concat!(
                "SELECT ",
                columns!(),
                " FROM job WHERE state = 0",
                within_reach!(),
                " ORDER BY priority DESC, id LIMIT ?1 {skip}"
            ),
            p![op.limit, &op.worker],
        )?;
        let left = self.left_claims(op)?;
        let found = ended.iter().chain(&left).chain(&queued);
        let mut jobs: Vec<Job> = found.map(job_of).collect::<R<_>>()?;
        jobs.sort_by_key(|j| (std::cmp::Reverse(j.what.priority), j.id));
        jobs.truncate(op.limit as usize);
        for job in &mut jobs {
            job.state = JobState::Running;
            job.worker = Some(op.worker.clone());
            job.attempts = job.attempts.saturating_add(1);
            job.claimed_until = Some(until);
            self.save_job(job)?;
        }
        Ok(jobs)
    }

    /// Jobs of others whose claims do not end by this service's clock, but that nobody has renewed for longer than a claim holds.
    fn left_claims(&mut self, op: &ClaimJobs) -> R<Vec<Row>> {
        let mut rows = self.q(
            concat!(
                "SELECT ",
                columns!(),
                " FROM job WHERE state = 1 AND claimed > ?3 AND worker <> ?2",
                within_reach!(),
                " ORDER BY id LIMIT ?1 {skip}"
            ),
            p![MAX_PAGE, &op.worker, self.now.0],
        )?;
        let name = |row: &Row| row.int(0).map(|id| format!("job/{id}"));
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            let (claimed, updated) = (row.int(17)?, row.int(16)?);
            // Both were written together, by one clock.
            let held = Duration::from_nanos(claimed.abs_diff(updated));
            seen.push((name(row)?, claimed, held * 3 / 2));
        }
        let stand = self.shared.standing.look("job/", &seen);
        rows.retain(|row| name(row).is_ok_and(|n| stand.contains(&n)));
        Ok(rows)
    }

    pub(super) fn job_progress(&mut self, op: &JobProgress) -> R<Job> {
        self.need_service("jobs")?;
        super::check_number("done", op.done_bytes)?;
        let until = Timestamp(self.now.0.saturating_add(ttl_ns(op.claim_ms)?));
        let mut job = self.job_locked(op.id)?;
        if job.state == JobState::Running && job.worker.as_deref() == Some(op.worker.as_str()) {
            job.done_bytes = op.done_bytes;
            job.claimed_until = Some(until);
            self.save_job(&mut job)?;
        }
        Ok(job)
    }

    pub(super) fn finish_job(&mut self, op: &FinishJob) -> R<Job> {
        self.need_service("jobs")?;
        if let Some(error) = &op.error {
            super::check_text("error", error)?;
        }
        let mut job = self.job_locked(op.id)?;
        if job.state != JobState::Running || job.worker.as_deref() != Some(op.worker.as_str()) {
            return refuse(
                ErrorKind::Stale,
                format!("job {} is {:?}, not {}'s", op.id, job.state, op.worker),
            );
        }
        match op.state {
            JobState::Done => job.done_bytes = job.total_bytes,
            JobState::Failed | JobState::Queued => {}
            other => {
                return refuse(
                    ErrorKind::Invalid,
                    format!("a worker ends a job done, failed or queued, not {other:?}"),
                );
            }
        }
        job.state = op.state;
        job.error.clone_from(&op.error);
        job.claimed_until = None;
        job.worker = None;
        self.save_job(&mut job)?;
        Ok(job)
    }

    pub(super) fn cancel_job(&mut self, id: JobId) -> R<Job> {
        let mut job = self.job_locked(id)?;
        if self.caller.role == Role::User && job.owner != self.caller.user {
            return refuse(ErrorKind::NotPermitted, format!("job {id} is another user's"));
        }
        if matches!(job.state, JobState::Queued | JobState::Running) {
            job.state = JobState::Cancelled;
            job.claimed_until = None;
            self.save_job(&mut job)?;
        }
        Ok(job)
    }

    // ---- lists -----------------------------------------------------------------------------------------

    pub(super) fn list_jobs(&mut self, op: &ListJobs) -> R<Vec<Job>> {
        super::check_page(op.limit)?;
        let after = op.after.map_or(0, |id| id.0);
        super::check_number("job", after)?;
        // What is not filtered is matched by a range that holds everything.
        let (state_from, state_to) = op
            .filter
            .state
            .map_or((0, 4), |s| (state_number(s), state_number(s)));
        let (ino_from, ino_to) = op.filter.ino.map_or((0, i64::MAX as u64), |i| (i.0, i.0));
        super::check_number("inode", ino_from)?;
        let mine = self.caller.role == Role::User;
        let params = p![
            after,
            state_from,
            state_to,
            ino_from,
            ino_to,
            op.limit,
            &self.caller.user
        ];
        macro_rules! list {
            ($owner:literal) => {
                concat!(
                    "SELECT ",
                    columns!(),
                    " FROM job WHERE id > ?1 AND state BETWEEN ?2 AND ?3 AND ino BETWEEN ?4 AND ?5",
                    $owner,
                    " ORDER BY id LIMIT ?6"
                )
            };
        }
        let rows = if mine {
            self.q(list!(" AND owner = ?7"), params)?
        } else {
            self.q(list!(""), &params[..6])?
        };
        rows.iter().map(job_of).collect()
    }

    pub(super) fn prune_jobs(&mut self, before: Timestamp, limit: u32) -> R<u64> {
        self.need_service("jobs")?;
        super::check_page(limit)?;
        self.x(
            "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE state >= 2 AND updated < ?1 ORDER BY id LIMIT ?2)",
            p![before.0, limit],
        )
    }
}
