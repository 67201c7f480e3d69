//! Quotas, access control lists, extended attributes and the catalog's own check.

use kuroshio_catalog as cat;
use kuroshio_catalog::{AclKind, AclTag, Place, QuotaSubject, SetXattrMode};
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

    /// An access control list.
    pub async fn acl(&self, session: &Session, r: v1::AclRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let op = cat::GetAcl {
            place: Place::path(&r.path),
            kind: kind(r.default_list),
        };
        let acl = self.ask(&session.who.caller, op).await?;
        let entries = acl.iter().flat_map(|a| a.entries()).map(entry);
        Ok(Answer::Acl(v1::AclReply {
            entries: entries.collect(),
        }))
    }

    /// Sets or removes an access control list.
    pub async fn set_acl(&self, session: &Session, r: v1::SetAclRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let entries = r.entries.iter().map(parse_entry).collect::<Result<Vec<_>, _>>()?;
        let acl = if entries.is_empty() {
            None
        } else {
            Some(cat::Acl::new(entries).map_err(|e| crate::convert::failure(&e))?)
        };
        let op = cat::SetAcl {
            place: Place::path(&r.path),
            kind: kind(r.default_list),
            acl,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// The value of an extended attribute.
    pub async fn xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let op = cat::GetXattr {
            place: Place::path(&r.path),
            name: r.name,
        };
        let value = self.ask(&session.who.caller, op).await?;
        Ok(Answer::Xattr(v1::XattrReply {
            value,
            names: Vec::new(),
        }))
    }

    /// Names of extended attributes.
    pub async fn xattrs(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let place = Place::path(&r.path);
        let names = self.ask(&session.who.caller, cat::ListXattr { place }).await?;
        Ok(Answer::Xattr(v1::XattrReply {
            value: Vec::new(),
            names,
        }))
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, session: &Session, r: v1::SetXattrRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let mode = match (r.create, r.replace) {
            (false, false) => SetXattrMode::Any,
            (true, false) => SetXattrMode::Create,
            (false, true) => SetXattrMode::Replace,
            (true, true) => return Err(invalid("an attribute cannot be both new and there already")),
        };
        let op = cat::SetXattr {
            place: Place::path(&r.path),
            name: r.name,
            value: r.value,
            mode,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let op = cat::RemoveXattr {
            place: Place::path(&r.path),
            name: r.name,
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

fn kind(default_list: bool) -> AclKind {
    if default_list {
        AclKind::Default
    } else {
        AclKind::Access
    }
}

fn entry(e: &cat::AclEntry) -> v1::AclEntry {
    let (tag, name) = match &e.tag {
        AclTag::UserObj => ("user", ""),
        AclTag::User(name) => ("user", name.as_str()),
        AclTag::GroupObj => ("group", ""),
        AclTag::Group(name) => ("group", name.as_str()),
        AclTag::Mask => ("mask", ""),
        AclTag::Other => ("other", ""),
    };
    v1::AclEntry {
        tag: tag.to_owned(),
        name: name.to_owned(),
        bits: e.bits.into(),
    }
}

fn parse_entry(e: &v1::AclEntry) -> Result<cat::AclEntry, Failure> {
    let tag = match (e.tag.as_str(), e.name.as_str()) {
        ("user", "") => AclTag::UserObj,
        ("user", name) => AclTag::User(name.to_owned()),
        ("group", "") => AclTag::GroupObj,
        ("group", name) => AclTag::Group(name.to_owned()),
        ("mask", "") => AclTag::Mask,
        ("other", "") => AclTag::Other,
        (tag, name) => {
            return Err(invalid(format!(
                "ACL entry `{}:{}`: user:NAME, user:, group:NAME, group:, mask: and other: are valid",
                tag.escape_debug(),
                name.escape_debug()
            )));
        }
    };
    if let AclTag::User(name) | AclTag::Group(name) = &tag
        && !cat::is_principal(name)
    {
        return Err(invalid(format!(
            "ACL entry: `{}` cannot be a user's or group's name",
            name.escape_debug()
        )));
    }
    let bits = u8::try_from(e.bits).ok().filter(|b| *b <= 7);
    let bits = bits.ok_or_else(|| invalid(format!("ACL entry: bits {}; 0 to 7 are valid", e.bits)))?;
    Ok(cat::AclEntry { tag, bits })
}
