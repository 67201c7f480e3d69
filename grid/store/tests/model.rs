//! Random operations, compared with a map in memory after each.

mod common;

use common::*;
use kuroshio_store::{Mode, ObjectId, ObjectWriter, Store, StoreError};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Put {
        object: u8,
        len: usize,
        seed: u64,
    },
    Begin {
        object: u8,
        sized: bool,
        len: usize,
    },
    Write {
        object: u8,
        at: usize,
        len: usize,
        seed: u64,
    },
    Finish {
        object: u8,
    },
    Abort {
        object: u8,
    },
    Delete {
        object: u8,
    },
    Read {
        object: u8,
        at: usize,
        len: usize,
    },
    Mode(u8),
    Reopen,
}

/// Objects of 0 to 9: two inodes with generations and fragments.
fn name(object: u8) -> ObjectId {
    ObjectId {
        inode: u64::from(object % 2),
        generation: u32::from(object / 2 % 3),
        fragment: u32::from(object / 6),
    }
}

fn op() -> impl Strategy<Value = Op> {
    let object = 0u8..10;
    prop_oneof![
        3 => (object.clone(), 0usize..20_000, 0u64..3)
            .prop_map(|(object, len, seed)| Op::Put { object, len, seed }),
        3 => (object.clone(), any::<bool>(), 0usize..20_000)
            .prop_map(|(object, sized, len)| Op::Begin { object, sized, len }),
        6 => (object.clone(), 0usize..20_000, 0usize..8000, any::<u64>())
            .prop_map(|(object, at, len, seed)| Op::Write { object, at, len, seed }),
        3 => object.clone().prop_map(|object| Op::Finish { object }),
        1 => object.clone().prop_map(|object| Op::Abort { object }),
        2 => object.clone().prop_map(|object| Op::Delete { object }),
        3 => (object, 0usize..20_000, 0usize..8000).prop_map(|(object, at, len)| Op::Read { object, at, len }),
        1 => (0u8..3).prop_map(Op::Mode),
        1 => Just(Op::Reopen),
    ]
}

/// What is being written: content so far, what of it is written, and the size it was begun with.
struct Draft {
    writer: ObjectWriter,
    content: Vec<u8>,
    written: Vec<bool>,
    size: Option<usize>,
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<ObjectId, Vec<u8>>,
    drafts: BTreeMap<ObjectId, Draft>,
    read_only: bool,
    drain: bool,
}

impl Model {
    fn refuses_new(&self) -> bool {
        self.read_only || self.drain
    }

    fn put(&mut self, store: &Store, id: ObjectId, data: Vec<u8>) {
        let answer = store.put(id, &meta("/m"), &data, Some(digest(&data)));
        match answer {
            Err(StoreError::Refused(_)) => assert!(self.refuses_new()),
            Err(StoreError::Busy(_)) => assert!(self.drafts.contains_key(&id)),
            Err(StoreError::Exists(_)) => assert!(self.objects.get(&id).is_some_and(|d| *d != data)),
            Err(e) => panic!("{e}"),
            Ok(sealed) => {
                assert!(!self.refuses_new() && !self.drafts.contains_key(&id));
                assert_eq!(sealed.known, self.objects.get(&id) == Some(&data));
                self.objects.insert(id, data);
            }
        }
    }

    fn begin(&mut self, store: &Store, id: ObjectId, size: Option<usize>) {
        match store.begin(id, begin(size.map(|s| s as u64), true)) {
            Err(StoreError::Refused(_)) => assert!(self.refuses_new()),
            Err(StoreError::Busy(_)) => assert!(self.drafts.contains_key(&id)),
            Err(StoreError::Exists(_)) => assert!(self.objects.contains_key(&id)),
            Err(e) => panic!("{e}"),
            Ok(writer) => {
                assert!(!self.refuses_new() && !self.objects.contains_key(&id));
                let (content, written) = (Vec::new(), Vec::new());
                let draft = Draft {
                    writer,
                    content,
                    written,
                    size,
                };
                assert!(self.drafts.insert(id, draft).is_none());
            }
        }
    }

    fn write(&mut self, id: ObjectId, at: usize, data: &[u8]) {
        let Some(draft) = self.drafts.get_mut(&id) else {
            return;
        };
        let answer = draft.writer.write_at(at as u64, data);
        let end = at + data.len();
        if draft.size.is_some_and(|s| end > s) {
            assert!(matches!(answer, Err(StoreError::Invalid(_))));
            return;
        }
        answer.expect("write");
        if data.is_empty() {
            return;
        }
        draft.content.resize(draft.content.len().max(end), 0);
        draft.written.resize(draft.content.len(), false);
        draft.content[at..end].copy_from_slice(data);
        draft.written[at..end].fill(true);
    }

    fn finish(&mut self, id: ObjectId) {
        let Some(mut draft) = self.drafts.remove(&id) else {
            return;
        };
        let size = draft.size.unwrap_or(draft.content.len());
        draft.content.resize(size, 0);
        draft.written.resize(size, false);
        let written = draft.written.iter().filter(|w| **w).count();
        assert_eq!(draft.writer.written().bytes(), written as u64);
        let answer = draft
            .writer
            .finish(finish(size as u64, Some(digest(&draft.content))));
        if written < size {
            assert!(matches!(answer, Err(StoreError::Incomplete { .. })));
            self.drafts.insert(id, draft);
            return;
        }
        let sealed = answer.expect("finish");
        assert!(!sealed.known);
        self.objects.insert(id, draft.content);
    }

    fn delete(&mut self, store: &Store, id: ObjectId) {
        match store.delete(id) {
            Err(StoreError::Refused(_)) => assert!(self.read_only),
            Err(StoreError::NotFound(_)) => assert!(!self.objects.contains_key(&id)),
            Err(e) => panic!("{e}"),
            Ok(()) => assert!(!self.read_only && self.objects.remove(&id).is_some()),
        }
    }

    fn read(&self, store: &Store, id: ObjectId, at: usize, len: usize) {
        let Some(content) = self.objects.get(&id) else {
            assert!(matches!(store.read(id), Err(StoreError::NotFound(_))));
            return;
        };
        let reader = store.read(id).expect("there");
        assert_eq!(reader.digest(), digest(content));
        let mut buf = vec![0; len];
        let got = reader.read_at(at as u64, &mut buf).expect("read");
        let from = at.min(content.len());
        let to = (at + len).min(content.len()).max(from);
        assert_eq!(buf[..got], content[from..to]);
    }

    /// The sums and the list are those of the model.
    fn compare(&self, store: &Store) {
        let status = store.status().expect("status");
        assert_eq!(status.objects, self.objects.len() as u64);
        assert_eq!(status.writers, self.drafts.len() as u64);
        let (listed, next) = store.list(None, 100).expect("list");
        assert!(next.is_none());
        let mut ids: Vec<ObjectId> = listed.iter().map(|l| l.id).collect();
        ids.sort();
        assert_eq!(ids, self.objects.keys().copied().collect::<Vec<_>>());
        if self.drafts.is_empty() {
            assert_eq!(status.reserved_bytes, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn like_a_map(ops in prop::collection::vec(op(), 1..60)) {
        let dir = tempfile::tempdir().expect("folder");
        let mut store = open(dir.path());
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Put { object, len, seed } => model.put(&store, name(object), bytes(seed, len)),
                Op::Begin { object, sized, len } => model.begin(&store, name(object), sized.then_some(len)),
                Op::Write { object, at, len, seed } => model.write(name(object), at, &bytes(seed, len)),
                Op::Finish { object } => model.finish(name(object)),
                Op::Abort { object } => if let Some(d) = model.drafts.remove(&name(object)) { d.writer.abort() },
                Op::Delete { object } => model.delete(&store, name(object)),
                Op::Read { object, at, len } => model.read(&store, name(object), at, len),
                Op::Mode(n) => {
                    let mode = [Mode::Normal, Mode::ReadOnly, Mode::Drain][usize::from(n)];
                    store.set_mode(mode).expect("set");
                    (model.read_only, model.drain) = (n == 1, n == 2);
                }
                Op::Reopen => {
                    // Writers hold the spool: they go first. Small drafts begin again.
                    model.drafts.clear();
                    drop(store);
                    store = open(dir.path());
                }
            }
            model.compare(&store);
        }
        for object in 0..10 {
            model.read(&store, name(object), 0, 30_000);
        }
        let report = store.fsck(true, &mut |_| {}).expect("fsck");
        prop_assert_eq!((report.right, report.damaged, report.foreign), (model.objects.len() as u64, 0, 0));
    }
}
