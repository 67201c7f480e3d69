//! Quotas and the catalog's own check.

use kuroshio_catalog as cat;
use kuroshio_catalog::{Place, QuotaSubject};
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_service::Operation;

use crate::door::Session;
use crate::server::Inner;

/// Findings of a check when no number is asked for, and at most: they fit into one answer.
const MAX_FINDINGS: u32 = 1000;
/// Longest text of one finding that is told, bytes.
const MAX_FINDING_BYTES: usize = 512;

type Answered = Result<Answer, Failure>;

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, text)
}

fn done(_: ()) -> Answer {
    Answer::Done(v1::Done {})
}

impl Inner {
    /// Whose quota is meant; the token must reach a directory.
    async fn subject(
        &self,
        session: &Session,
        operation: Operation,
        whose: v1::QuotaRequest,
    ) -> Result<QuotaSubject, Failure> {
        match (whose.user, whose.group, whose.path) {
            (user, group, path) if !user.is_empty() && group.is_empty() && path.is_empty() => {
                Ok(QuotaSubject::User(user))
            }
            (user, group, path) if user.is_empty() && !group.is_empty() && path.is_empty() => {
                Ok(QuotaSubject::Group(group))
            }
            (user, group, path) if user.is_empty() && group.is_empty() && !path.is_empty() => {
                self.may(&session.who, operation, &path).await?;
                Ok(QuotaSubject::Dir(Place::path(&path)))
            }
            _ => Err(invalid(
                "a quota is of one user, of one group or of one directory: exactly one is to be named",
            )),
        }
    }

    /// Use and bounds.
    pub async fn quota(&self, session: &Session, r: v1::QuotaRequest) -> Answered {
        let subject = self.subject(session, Operation::Read, r).await?;
        let usage = self.ask(&session.who.caller, cat::GetUsage { subject }).await?;
        Ok(Answer::Use(v1::UseReply {
            uses: vec![v1::Use {
                name: usage.name,
                files: usage.files,
                bytes: usage.bytes,
                max_files: usage.max_files,
                max_bytes: usage.max_bytes,
            }],
        }))
    }

    /// Sets bounds.
    pub async fn set_quota(&self, session: &Session, r: v1::SetQuotaRequest) -> Answered {
        let whose = r.whose.unwrap_or_default();
        let subject = self.subject(session, Operation::Modify, whose).await?;
        let op = cat::SetQuota {
            subject,
            max_files: r.max_files,
            max_bytes: r.max_bytes,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// Looks for what in the catalog contradicts itself.
    pub async fn check(&self, session: &Session, r: &v1::CheckRequest) -> Answered {
        session.who.admin()?;
        let limit = if r.limit == 0 { MAX_FINDINGS } else { r.limit };
        if limit > MAX_FINDINGS {
            return Err(invalid(format!(
                "{limit} findings: 1 to {MAX_FINDINGS} are valid"
            )));
        }
        let op = cat::CheckInvariants { limit };
        let mut findings = self.ask(&session.who.caller, op).await?;
        for finding in &mut findings {
            finding.truncate(MAX_FINDING_BYTES);
        }
        Ok(Answer::Check(v1::CheckReply { findings }))
    }
}
