//! Which contents become files, and by which names.
//!
//! | of an inode, beside the snapshot | names |
//! |---|---|
//! | in it, and neither content nor copy is later | those of the snapshot |
//! | in it, but the content or a copy was kept later | the path that is kept; with further names of the snapshot if it had several |
//! | not in it, later than it | the path that is kept |
//! | not in it, but not later: removed before it, or not yet published | the path that is kept, if nothing of the above has it |
//!
//! Of several that would have one name the last of this table gives way: later ones first, then the snapshot.

use std::cmp::Reverse;
use std::collections::HashMap;

use kuroshio_catalog::{Generation, Ino};
use kuroshio_proto::{MAX_NAME_BYTES, v1};

use super::{Content, Gathered};
use crate::auth;
use crate::snapshot::Snapshot;

/// A content that is to be published.
pub struct Job {
    pub ino: Ino,
    pub generation: Generation,
    pub content: Content,
    /// Its paths, but for those that another has a better right to.
    pub paths: Vec<Vec<u8>>,
    /// What is kept beside it is later than the snapshot.
    pub late: bool,
}

/// What is to be done.
#[derive(Default)]
pub struct Chosen {
    pub first: Vec<Job>,
    /// When all other names are given.
    pub last: Vec<Job>,
    /// What is left, in words.
    pub left: Vec<String>,
}

/// How good the right to a name is.
type Rank = (u8, u64);

impl Content {
    /// The path that is kept, if it can be one.
    fn path(&self) -> Option<Vec<u8>> {
        let path = auth::plain_path(&self.file.path).ok()?;
        let long = |name: &[u8]| name.len() > MAX_NAME_BYTES;
        (path != b"/" && !path.split(|b| *b == b'/').any(long)).then_some(path)
    }
}

/// Of each inode the newest content that is whole.
pub fn choose(gathered: Gathered, snapshot: Option<&Snapshot>) -> Chosen {
    let mut chosen = Chosen::default();
    let mut jobs: Vec<(Rank, Job)> = Vec::new();
    let mut taken: Option<u64> = None;
    for ((ino, Reverse(generation)), content) in gathered.contents {
        let name = String::from_utf8_lossy(&content.file.path).into_owned();
        if taken == Some(ino) {
            let text = format!("{ino}.{generation} ({name}): an older content of a file that is there");
            chosen.left.push(text);
        } else if content.is_whole() {
            taken = Some(ino);
            jobs.push(job(ino, generation, content, snapshot));
        } else {
            let (have, of) = (content.pieces.len(), content.file.fragments);
            let text = format!("{ino}.{generation} ({name}): {have} of {of} fragments were found");
            chosen.left.push(text);
        }
    }
    let mut best: HashMap<Vec<u8>, Rank> = HashMap::new();
    for (rank, job) in &jobs {
        for path in &job.paths {
            let best = best.entry(path.clone()).or_default();
            *best = (*best).max(*rank);
        }
    }
    for (rank, mut job) in jobs {
        job.paths.retain(|p| best.get(p).is_none_or(|b| *b == rank));
        if snapshot.is_some() && rank.0 == 0 {
            chosen.last.push(job);
        } else {
            chosen.first.push(job);
        }
    }
    chosen
}

/// A content with its names and its right to them.
fn job(ino: u64, generation: u64, content: Content, snapshot: Option<&Snapshot>) -> (Rank, Job) {
    let own = content.path();
    let kept = snapshot.and_then(|s| Some((s, s.inodes.get(&ino)?)));
    let kept = kept.filter(|(_, k)| k.kind() == v1::Kind::File);
    let (rank, late, paths) = match (snapshot, kept) {
        (_, Some((snapshot, kept))) => {
            let was = kept.inode.attr.as_ref().map_or(0, |a| a.generation);
            let late = generation > was || content.file.kept_ns > snapshot.taken_ns;
            let mut paths = snapshot.paths(kept);
            match own {
                Some(own) if late && !paths.contains(&own) && paths.len() > 1 => paths.insert(0, own),
                Some(own) if late && !paths.contains(&own) => paths = vec![own],
                _ => {}
            }
            let rank = if late { 2 } else { 1 };
            (rank, late, paths)
        }
        (Some(snapshot), None) if generation >= snapshot.next => (2, false, own.into_iter().collect()),
        (_, None) => (0, false, own.into_iter().collect()),
    };
    let job = Job {
        ino: Ino(ino),
        generation: Generation(generation),
        content,
        paths,
        late,
    };
    ((rank, generation), job)
}

#[cfg(test)]
mod tests {
    use super::super::Found;
    use super::*;
    use crate::snapshot::Kept;
    use kuroshio_catalog::CopyRule;

    fn object(
        inode: u64,
        generation: u64,
        fragment: u32,
        path: &str,
        of: u32,
        kept_ns: i64,
    ) -> v1::ObjectName {
        v1::ObjectName {
            inode,
            generation,
            fragment,
            size_bytes: 5,
            digest: vec![7; 32],
            file: Some(v1::FileFacts {
                path: path.into(),
                fragments: of,
                kept_ns,
                ..v1::FileFacts::default()
            }),
        }
    }

    #[test]
    fn the_newest_whole_content_and_the_latest_name_are_taken() {
        let found = Found::default();
        let gathering = found.begin().expect("the first");
        assert!(found.begin().is_err(), "one at a time");
        for (node, object) in [
            // Two copies, the later one made after a rename.
            ("n1", object(20, 21, 0, "/old", 1, 1)),
            ("n2", object(20, 21, 0, "/new", 1, 2)),
            // A content with a fragment missing: the one before it is taken.
            ("n1", object(30, 31, 0, "/two", 1, 1)),
            ("n1", object(30, 35, 1, "/two", 2, 1)),
            // Later than inode 20, and of the name that it had.
            ("n1", object(40, 41, 0, "/new", 1, 1)),
            ("n1", object(50, 51, 0, "", 1, 1)),
            ("n1", object(60, 61, 0, "/../up", 0, 1)),
        ] {
            found.add(node, &object);
        }
        let chosen = choose(gathering.take(), None);
        let expected = [
            (20, 21, ""),
            (30, 31, "/two"),
            (40, 41, "/new"),
            (50, 51, ""),
            (60, 61, ""),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(i, g, p)| (*i, *g, (*p).to_owned()))
            .collect();
        assert_eq!(told(&chosen.first), expected);
        assert_eq!(chosen.first[0].content.rule(), CopyRule::Count(2));
        assert_eq!(
            (chosen.last.len(), chosen.left.len()),
            (0, 1),
            "{:?}",
            chosen.left
        );
        assert!(found.begin().is_ok());
    }

    fn told(jobs: &[Job]) -> Vec<(u64, u64, String)> {
        let paths = |j: &Job| String::from_utf8_lossy(&j.paths.join(b" ".as_slice())).into_owned();
        let told = jobs.iter().map(|j| (j.ino.0, j.generation.0, paths(j)));
        told.collect()
    }

    #[test]
    fn names_are_those_of_the_snapshot_unless_something_is_later() {
        let kept = |generation: u64, names: &[&str]| Kept {
            inode: v1::SnapshotInode {
                attr: Some(v1::Attr {
                    kind: v1::Kind::File.into(),
                    generation,
                    ..v1::Attr::default()
                }),
                ..v1::SnapshotInode::default()
            },
            names: names.iter().map(|n| (1, n.as_bytes().to_vec())).collect(),
            xattrs: Vec::new(),
        };
        let inodes = [
            (20, kept(21, &["moved"])),
            (30, kept(31, &["c", "d"])),
            (40, kept(41, &["e"])),
            (50, kept(51, &["f", "g"])),
            (60, kept(61, &["h"])),
            (80, kept(81, &["i"])),
        ];
        let snapshot = Snapshot {
            taken_ns: 10,
            next: 100,
            inodes: inodes.into_iter().collect(),
            bounds: Vec::new(),
        };
        let found = Found::default();
        let gathering = found.begin().expect("the first");
        for object in [
            // Renamed, then the snapshot.
            object(20, 21, 0, "/was", 1, 5),
            object(30, 31, 0, "/c", 1, 5),
            // A later content, written as another name.
            object(40, 101, 0, "/late", 1, 20),
            object(50, 102, 0, "/x", 1, 20),
            // A copy that was made later knows a later name: that of inode 20 then.
            object(60, 61, 0, "/moved", 1, 20),
            // By a number that came later, whatever the node's clock says.
            object(80, 103, 0, "/j", 1, 5),
            // New; and one that was removed before the snapshot.
            object(110, 111, 0, "/c", 1, 20),
            object(70, 71, 0, "/e", 1, 5),
        ] {
            found.add("n1", &object);
        }
        let chosen = choose(gathering.take(), Some(&snapshot));
        let expected = [
            (20, 21, ""),
            (30, 31, "/d"),
            (40, 101, "/late"),
            (50, 102, "/x /f /g"),
            (60, 61, "/moved"),
            (80, 103, "/j"),
            (110, 111, "/c"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(i, g, p)| (*i, *g, (*p).to_owned()))
            .collect();
        assert_eq!(told(&chosen.first), expected);
        assert_eq!(told(&chosen.last), [(70, 71, "/e".to_owned())]);
    }
}
