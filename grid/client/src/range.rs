//! A range of a file's content, going on at another replica at the byte where a node failed.
//!
//! ```text
//!   fragments   |....0....|....1....|..2..|
//!   range            [==================]       part of 0, all of 1, part of 2
//! ```
//!
//! A fragment that is read whole is compared with the digest that the catalog knows before its last piece is
//! given on. Of a part of a fragment nothing is verified here.

use std::io;

use kuroshio_proto::v1;

use crate::content::{Cancel, SILENCE, dial, hex, places_of};
use crate::error::ClientError;
use crate::grid::Grid;

/// What takes the pieces; its error ends the reading.
pub type Sink<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl Grid {
    /// Reads `len` bytes from `start` of the file that `grant` opened at `path`, into `sink`.
    ///
    /// # Errors
    /// See [`ClientError`]; of a fragment that is read whole the last piece is not given on when its digest is
    /// wrong. A range beyond the end is [`ClientError::Invalid`].
    pub fn read_range(
        &self,
        path: &[u8],
        grant: &v1::ReadGrant,
        (start, len): (u64, u64),
        sink: &mut Sink<'_>,
        cancel: &Cancel,
    ) -> Result<(), ClientError> {
        let size = grant.fragments.iter().map(|f| f.size_bytes).sum::<u64>();
        let end = start.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or_else(|| {
            ClientError::Invalid(format!("{len} bytes from {start} on, of a file of {size} bytes"))
        })?;
        let mut first = 0;
        for fragment in &grant.fragments {
            let last = first + fragment.size_bytes;
            let (from, to) = (start.max(first), end.min(last));
            if from < to {
                let mut part = Part {
                    grid: self,
                    path,
                    grant,
                    fragment,
                    at: from - first,
                    end: to - first,
                    check: (from == first && to == last).then(Check::default),
                    cancel,
                };
                part.read(sink)?;
            }
            first = last;
        }
        Ok(())
    }
}

/// Holds one piece back until the fragment's digest is known to be right.
#[derive(Default)]
struct Check {
    hasher: blake3::Hasher,
    held: Vec<u8>,
}

impl Check {
    /// The piece that may go on now, in exchange for `piece`.
    fn exchange(&mut self, piece: &[u8]) -> Vec<u8> {
        self.hasher.update(piece);
        std::mem::replace(&mut self.held, piece.to_vec())
    }
}

/// A part of one fragment.
struct Part<'a> {
    grid: &'a Grid,
    path: &'a [u8],
    grant: &'a v1::ReadGrant,
    fragment: &'a v1::Fragment,
    /// Bytes of the fragment, of which those before `at` have come.
    at: u64,
    end: u64,
    check: Option<Check>,
    cancel: &'a Cancel,
}

impl Part<'_> {
    /// Tries the replicas in turn; when all have failed, asks once where they are now.
    fn read(&mut self, sink: &mut Sink<'_>) -> Result<(), ClientError> {
        let mut errors = Vec::new();
        self.read_places(&self.fragment.places, sink, &mut errors)?;
        if self.at < self.end {
            let grant = self.grid.open(self.path)?;
            let generation = |g: &v1::ReadGrant| g.attr.as_ref().map(|a| a.generation);
            let result = if generation(&grant) == generation(self.grant) {
                self.read_places(&places_of(&grant, self.fragment), sink, &mut errors)
            } else {
                errors.push("the file has new content".into());
                Ok(())
            };
            self.grid.close(&grant);
            result?;
        }
        if self.at < self.end {
            let why = if errors.is_empty() {
                "no replica is on a node that is up".to_owned()
            } else {
                errors.join("; ")
            };
            return Err(ClientError::NoReplica(format!(
                "{}: no replica of fragment {} could be read from byte {} on: {why}",
                String::from_utf8_lossy(self.path),
                self.fragment.index,
                self.at
            )));
        }
        self.finish(sink)
    }

    fn read_places(
        &mut self,
        places: &[v1::Place],
        sink: &mut Sink<'_>,
        errors: &mut Vec<String>,
    ) -> Result<(), ClientError> {
        for place in places {
            if self.at == self.end {
                break;
            }
            match self.read_place(place, sink) {
                Ok(()) => {}
                Err(e @ (ClientError::Cancelled | ClientError::Local { .. })) => return Err(e),
                Err(e) => errors.push(format!("{}: {e}", place.node)),
            }
        }
        Ok(())
    }

    /// Reads from `at` to the end, or until the node fails.
    fn read_place(&mut self, place: &v1::Place, sink: &mut Sink<'_>) -> Result<(), ClientError> {
        self.cancel.check()?;
        let mut http = dial(place)?;
        http.set_limit(SILENCE)?;
        let mut stopped = None;
        let (start, left) = (self.at, self.end - self.at);
        let fetched = http.get_range(&place.path, start, left, &mut |piece| {
            let given = match &mut self.check {
                Some(check) => sink(&check.exchange(piece)),
                None => sink(piece),
            };
            self.at += piece.len() as u64;
            let given = given.map_err(|e| ClientError::local("(destination)", e));
            given.and_then(|()| self.cancel.moved(piece.len())).map_err(|e| {
                stopped = Some(e);
                io::Error::other("stopped")
            })
        });
        match stopped {
            Some(e) => Err(e),
            None => Ok(fetched?),
        }
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), ClientError> {
        let Some(check) = self.check.take() else {
            return Ok(());
        };
        let digest = check.hasher.finalize();
        if digest.as_bytes().as_slice() != self.fragment.digest {
            return Err(ClientError::Digest(format!(
                "{}: the content is not what the catalog knows (digest {digest}, known {})",
                String::from_utf8_lossy(self.path),
                hex(&self.fragment.digest)
            )));
        }
        sink(&check.held).map_err(|e| ClientError::local("(destination)", e))
    }
}
