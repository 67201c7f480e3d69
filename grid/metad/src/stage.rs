//! Content in several fragments: the right to write them, what was written, and drafts of many processes.

use kuroshio_catalog as cat;
use kuroshio_catalog::{Draft, Generation, Handle, Ino};
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_proto::{OBJECTS_PREFIX, object_path};
use kuroshio_service::FileFacts;

use crate::auth::Who;
use crate::convert;
use crate::door::Session;
use crate::server::Inner;

/// Fragments of one put.
pub const MAX_PUT_FRAGMENTS: u32 = 1024;
/// Nodes that a right to write names for each of many fragments.
const PLACES: usize = 2;

type Answered = Result<Answer, Failure>;

impl Inner {
    /// The right to write all fragments of a file, each at first on a node of its own as long as there are enough.
    pub fn fragment_grant(
        &self,
        who: &Who,
        (inode, generation, new_file): (u64, u64, bool),
        file: FileFacts,
        nodes: &[cat::Node],
    ) -> Answered {
        let count = file.fragments;
        let scope = format!("storage.modify:{OBJECTS_PREFIX}{inode}/{generation}");
        let token = self.grant_file(&who.caller.user, &scope, file)?;
        let fragment = |index: u32| {
            let turn = nodes.iter().cycle().skip(index as usize % nodes.len().max(1));
            let places = turn.take(PLACES.min(nodes.len())).map(|n| v1::Place {
                node: n.name.clone(),
                address: n.address.clone(),
                pin: n.pin.clone(),
                path: object_path(inode, generation, index),
                up: true,
                state: "writing".into(),
                ..v1::Place::default()
            });
            v1::Fragment {
                index,
                places: places.collect(),
                ..v1::Fragment::default()
            }
        };
        Ok(Answer::Write(v1::WriteGrant {
            inode,
            generation,
            new_file,
            fragments: (0..count).map(fragment).collect(),
            token,
            ..v1::WriteGrant::default()
        }))
    }

    /// The generation of the draft that many processes write together: the first one's, as long as it is not published.
    pub async fn join_draft(&self, user: &str, draft: Draft, count: u32) -> Result<u64, Failure> {
        let joined = self.registry.join_draft(draft, user, count);
        let generation = joined.map_err(|text| Failure::new(Code::Busy, text))?;
        if generation != draft.generation.0 {
            let handle = draft.handle;
            self.ask(&self.service(), cat::Release { handle }).await?;
        }
        Ok(generation)
    }

    /// The fragments that a commit publishes, each with the word of a node that has it.
    pub fn written(&self, r: &v1::CommitRequest) -> Result<Vec<cat::NewFragment>, Failure> {
        if r.staged > 0 {
            return Ok(Vec::new());
        }
        if r.fragments.is_empty() {
            if r.size_bytes == 0 && r.receipts.is_empty() {
                // Nothing is stored of an empty file.
                convert::digest(&r.digest)?;
                return Ok(Vec::new());
            }
            let whole = v1::WrittenFragment {
                index: 0,
                size_bytes: r.size_bytes,
                digest: r.digest.clone(),
                receipts: r.receipts.clone(),
            };
            return Ok(vec![self.one_written(r.inode, r.generation, &whole)?]);
        }
        let each = r
            .fragments
            .iter()
            .map(|f| self.one_written(r.inode, r.generation, f));
        each.collect()
    }

    /// Whether every fragment that a commit of staged ones counts on is there.
    pub async fn check_staged(&self, r: &v1::CommitRequest) -> Result<(), Failure> {
        if r.staged > MAX_PUT_FRAGMENTS {
            let text = format!("{} fragments: at most {MAX_PUT_FRAGMENTS} are valid", r.staged);
            return Err(Failure::new(Code::Invalid, text));
        }
        for fragment in 0..r.staged {
            let object = cat::ObjectId {
                ino: Ino(r.inode),
                generation: Generation(r.generation),
                fragment,
            };
            if let Err(e) = self.try_ask(&self.service(), cat::GetFragment { object }).await {
                let text = format!("fragment {fragment} of {} was not written: {e}", r.staged);
                return Err(Failure::new(Code::Invalid, text));
            }
        }
        Ok(())
    }

    fn one_written(
        &self,
        inode: u64,
        generation: u64,
        f: &v1::WrittenFragment,
    ) -> Result<cat::NewFragment, Failure> {
        let digest = convert::digest(&f.digest)?;
        let object = (inode, generation, f.index);
        let mut nodes = Vec::new();
        for receipt in &f.receipts {
            if !self
                .master
                .check(&receipt.node, object, f.size_bytes, &f.digest, &receipt.mac)
            {
                let text = format!(
                    "the receipt is not one of node `{}` for this content",
                    receipt.node.escape_debug()
                );
                return Err(Failure::new(Code::Invalid, text));
            }
            nodes.push(receipt.node.clone());
        }
        if nodes.is_empty() && f.size_bytes > 0 {
            return Err(Failure::new(
                Code::Invalid,
                "no receipt of a node that has the content",
            ));
        }
        Ok(cat::NewFragment {
            index: f.index,
            size: f.size_bytes,
            digest,
            nodes,
        })
    }

    /// A fragment of a draft that others of its processes complete.
    pub async fn stage(&self, session: &Session, r: v1::StageRequest) -> Answered {
        let who = &session.who;
        who.holds(self, &r.token, &object_path(r.inode, r.generation, r.fragment))?;
        let written = v1::WrittenFragment {
            index: r.fragment,
            size_bytes: r.size_bytes,
            digest: r.digest,
            receipts: r.receipt.into_iter().collect(),
        };
        let op = cat::StageFragment {
            draft: Draft {
                ino: Ino(r.inode),
                generation: Generation(r.generation),
                // Another process's, or of another life of this service.
                handle: Handle(0),
                base: Generation::EMPTY,
            },
            fragment: self.one_written(r.inode, r.generation, &written)?,
        };
        self.ask(&who.caller, op).await?;
        Ok(Answer::Done(v1::Done {}))
    }
}
