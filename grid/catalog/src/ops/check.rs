//! The invariants, checked by reading everything. Each is a query whose rows are findings.

use super::Tx;
use super::content::{VALID, counts};
use super::grid::node_state;
use crate::sql::{R, Row, p};
use std::collections::HashMap;

/// An invariant: what a row of the query means, and the query. Its columns are numbers.
struct Invariant {
    broken: &'static str,
    sql: &'static str,
}

const INVARIANTS: &[Invariant] = &[
    Invariant {
        broken: "a file or symbolic link's links are not its names (inode, links, names)",
        sql: "SELECT i.ino, i.nlink, COUNT(d.ino) FROM inode i LEFT JOIN dirent d ON d.ino = i.ino \
              WHERE i.kind <> 1 GROUP BY i.ino, i.nlink HAVING i.nlink <> COUNT(d.ino)",
    },
    Invariant {
        broken: "a directory's links are not 2 and its subdirectories (inode, links, subdirectories)",
        sql: "SELECT i.ino, i.nlink, COUNT(d.ino) FROM inode i LEFT JOIN dirent d ON d.parent = i.ino AND d.kind = 1 \
              WHERE i.kind = 1 GROUP BY i.ino, i.nlink HAVING i.nlink <> 2 + COUNT(d.ino)",
    },
    Invariant {
        broken: "a name leads nowhere, or its kind is wrong (directory, inode)",
        sql: "SELECT d.parent, d.ino FROM dirent d LEFT JOIN inode i ON i.ino = d.ino \
              WHERE i.ino IS NULL OR i.kind <> d.kind",
    },
    Invariant {
        broken: "a name is in what is not a directory (directory, inode)",
        sql: "SELECT d.parent, d.ino FROM dirent d LEFT JOIN inode i ON i.ino = d.parent AND i.kind = 1 \
              WHERE i.ino IS NULL",
    },
    Invariant {
        broken: "a directory has not exactly one name, in its parent (inode, names)",
        sql: "SELECT i.ino, COUNT(d.ino) FROM inode i LEFT JOIN dirent d ON d.ino = i.ino AND d.parent = i.parent \
              WHERE i.kind = 1 AND i.ino <> 1 GROUP BY i.ino HAVING COUNT(d.ino) <> 1",
    },
    Invariant {
        broken: "directories cannot be reached from the root (directories, reached)",
        sql: "WITH RECURSIVE down(ino) AS (SELECT CAST(1 AS BIGINT) UNION SELECT d.ino FROM dirent d \
              JOIN down ON d.parent = down.ino WHERE d.kind = 1) \
              SELECT COUNT(*), (SELECT COUNT(*) FROM down) FROM inode WHERE kind = 1 \
              HAVING COUNT(*) <> (SELECT COUNT(*) FROM down)",
    },
    Invariant {
        broken: "a file without a name is not noted as dead (inode)",
        sql: "SELECT i.ino FROM inode i WHERE i.kind = 0 AND i.nlink = 0 AND NOT EXISTS \
              (SELECT 1 FROM dead d WHERE d.ino = i.ino AND d.whole = 1)",
    },
    Invariant {
        broken: "a file with a name is noted as dead (inode)",
        sql: "SELECT i.ino FROM inode i JOIN dead d ON d.ino = i.ino WHERE i.nlink > 0 AND \
              (d.whole = 1 OR d.gen = i.gen)",
    },
    Invariant {
        broken: "a user's usage is not the sum of what it owns (user, files, bytes, found, found bytes)",
        sql: "SELECT u.id, u.files, u.bytes, COUNT(i.ino), CAST(COALESCE(SUM(CASE WHEN i.kind = 0 THEN i.size ELSE 0 \
              END), 0) AS BIGINT) FROM usage u LEFT JOIN inode i ON i.uid = u.id AND i.nlink > 0 WHERE u.kind = 0 \
              GROUP BY u.id, u.files, u.bytes HAVING u.files <> COUNT(i.ino) OR \
              u.bytes <> COALESCE(SUM(CASE WHEN i.kind = 0 THEN i.size ELSE 0 END), 0)",
    },
    Invariant {
        broken: "a group's usage is not the sum of what it owns (group, files, bytes, found, found bytes)",
        sql: "SELECT u.id, u.files, u.bytes, COUNT(i.ino), CAST(COALESCE(SUM(CASE WHEN i.kind = 0 THEN i.size ELSE 0 \
              END), 0) AS BIGINT) FROM usage u LEFT JOIN inode i ON i.gid = u.id AND i.nlink > 0 WHERE u.kind = 1 \
              GROUP BY u.id, u.files, u.bytes HAVING u.files <> COUNT(i.ino) OR \
              u.bytes <> COALESCE(SUM(CASE WHEN i.kind = 0 THEN i.size ELSE 0 END), 0)",
    },
    Invariant {
        broken: "an owner or group has no usage (inode)",
        sql: "SELECT i.ino FROM inode i WHERE NOT EXISTS (SELECT 1 FROM usage u WHERE u.id = i.uid AND u.kind = 0) \
              OR NOT EXISTS (SELECT 1 FROM usage u WHERE u.id = i.gid AND u.kind = 1)",
    },
    Invariant {
        broken: "a content's fragments are not complete (inode, fragments, bytes, found, found bytes)",
        sql: "SELECT i.ino, i.frags, i.size, COUNT(f.idx), CAST(COALESCE(SUM(f.size), 0) AS BIGINT) FROM inode i \
              LEFT JOIN fragment f ON f.ino = i.ino AND f.gen = i.gen WHERE i.kind = 0 GROUP BY i.ino, i.frags, i.size \
              HAVING i.frags <> COUNT(f.idx) OR i.size <> COALESCE(SUM(f.size), 0) OR \
              (COUNT(f.idx) > 0 AND MAX(f.idx) <> COUNT(f.idx) - 1)",
    },
    Invariant {
        broken: "a fragment is of no content: not published, not dead, not staged (inode, generation, index)",
        sql: "SELECT f.ino, f.gen, f.idx FROM fragment f LEFT JOIN inode i ON i.ino = f.ino WHERE i.ino IS NULL OR \
              (i.gen <> f.gen AND i.nlink > 0 AND NOT EXISTS (SELECT 1 FROM dead d WHERE d.ino = f.ino AND d.gen = f.gen) \
              AND NOT EXISTS (SELECT 1 FROM draft t WHERE t.ino = f.ino AND t.gen = f.gen))",
    },
    Invariant {
        broken: "a replica is on a node that is not there (inode, generation, index, node)",
        sql: "SELECT r.ino, r.ogen, r.idx, r.node FROM replica r LEFT JOIN node n ON n.id = r.node WHERE n.id IS NULL",
    },
    Invariant {
        broken: "a replica that is not to be removed is of no fragment (inode, generation, index, state)",
        sql: "SELECT r.ino, r.ogen, r.idx, r.state FROM replica r WHERE r.state <> 4 AND NOT EXISTS \
              (SELECT 1 FROM fragment f WHERE f.ino = r.ino AND f.ogen = r.ogen AND f.idx = r.idx)",
    },
    Invariant {
        broken: "attributes, drafts or notes of an inode that is not there (inode)",
        sql: "SELECT x.ino FROM xattr x LEFT JOIN inode i ON i.ino = x.ino WHERE i.ino IS NULL \
              UNION ALL SELECT o.ino FROM off_copies o LEFT JOIN inode i ON i.ino = o.ino WHERE i.ino IS NULL \
              UNION ALL SELECT t.ino FROM draft t LEFT JOIN inode i ON i.ino = t.ino WHERE i.ino IS NULL \
              UNION ALL SELECT d.ino FROM dead d LEFT JOIN inode i ON i.ino = d.ino WHERE i.ino IS NULL",
    },
    Invariant {
        broken: "what is noted of a fragment's copies is not of a published content (inode, generation, index)",
        sql: "SELECT o.ino, o.ogen, o.idx FROM off_copies o JOIN inode i ON i.ino = o.ino WHERE i.nlink = 0 OR NOT EXISTS \
              (SELECT 1 FROM fragment f WHERE f.ino = o.ino AND f.gen = i.gen AND f.idx = o.idx AND f.ogen = o.ogen)",
    },
];

impl Tx<'_> {
    pub(super) fn check_invariants(&mut self, limit: u32) -> R<Vec<Vec<u8>>> {
        self.need_service("the check")?;
        super::check_page(limit)?;
        let mut out = Vec::new();
        for invariant in INVARIANTS {
            for row in self.q(invariant.sql, p![])? {
                if out.len() >= limit as usize {
                    return Ok(out);
                }
                out.push(format!("{}: {}", invariant.broken, numbers(&row.0)).into_bytes());
            }
        }
        self.check_dir_usage(&mut out)?;
        self.check_copies(&mut out, limit as usize)?;
        out.truncate(limit as usize);
        Ok(out)
    }

    /// Directories' usage: what is charged to each, and to those whose quota is inside of it.
    fn check_dir_usage(&mut self, out: &mut Vec<Vec<u8>>) -> R<()> {
        let rows = self.q(
            "SELECT u.id, u.up, u.files, u.bytes, \
             (SELECT COUNT(*) FROM inode i WHERE i.qdir = u.id AND i.ino <> u.id AND i.nlink > 0), \
             (SELECT CAST(COALESCE(SUM(i.size), 0) AS BIGINT) FROM inode i WHERE i.qdir = u.id AND i.kind = 0 \
             AND i.nlink > 0) FROM usage u WHERE u.kind = 2",
            p![],
        )?;
        let mut up = HashMap::new();
        for row in &rows {
            up.insert(row.int(0)?, row.int(1)?);
        }
        let mut found: HashMap<i64, (i64, i64)> = HashMap::new();
        for row in &rows {
            let (files, bytes) = (row.int(4)?, row.int(5)?);
            let mut at = row.int(0)?;
            // The directory itself is charged to those above it. A chain longer than all rows is a loop.
            let mut itself = 0;
            for _ in 0..=rows.len() {
                if at == 0 {
                    break;
                }
                let sum = found.entry(at).or_default();
                *sum = (sum.0 + files + itself, sum.1 + bytes);
                itself = 1;
                at = up.get(&at).copied().unwrap_or(0);
            }
        }
        for row in &rows {
            let (id, has) = (row.int(0)?, (row.int(2)?, row.int(3)?));
            let sum = found.get(&id).copied().unwrap_or_default();
            if sum != has {
                let text = format!("directory {id}: its usage is {has:?} files and bytes, below it are {sum:?}");
                out.push(text.into_bytes());
            }
        }
        Ok(())
    }

    /// Every published fragment: what is noted of its copies, reckoned again. Also finds one without any.
    fn check_copies(&mut self, out: &mut Vec<Vec<u8>>, limit: usize) -> R<()> {
        let mut after = 0i64;
        loop {
            let sql = "SELECT MAX(p.ino) FROM (SELECT ino FROM inode WHERE ino > ?1 ORDER BY ino LIMIT 10000) p";
            let Some(to) = self.one(sql, p![after])?.map_or(Ok(None), |r| r.opt::<i64>(0))? else { return Ok(()) };
            let rows = self.q(
                "SELECT f.ino, f.ogen, f.idx, i.rule, o.missing, o.surplus, n.site, n.state, r.state \
                 FROM inode i JOIN fragment f ON f.ino = i.ino AND f.gen = i.gen \
                 LEFT JOIN off_copies o ON o.ino = f.ino AND o.ogen = f.ogen AND o.idx = f.idx \
                 LEFT JOIN replica r ON r.ino = f.ino AND r.ogen = f.ogen AND r.idx = f.idx \
                 LEFT JOIN node n ON n.id = r.node \
                 WHERE i.ino > ?1 AND i.ino <= ?2 AND i.nlink > 0 AND f.size > 0 ORDER BY f.ino, f.ogen, f.idx",
                p![after, to],
            )?;
            let same = |a: &Row, b: &Row| a.0[..3] == b.0[..3];
            for group in rows.chunk_by(same) {
                self.check_group(group, out)?;
                if out.len() >= limit {
                    return Ok(());
                }
            }
            after = to;
        }
    }

    fn check_group(&mut self, group: &[Row], out: &mut Vec<Vec<u8>>) -> R<()> {
        let Some(first) = group.first() else { return Ok(()) };
        let rule = self.rule(first.int(3)?)?;
        let noted = (first.opt::<u32>(4)?.unwrap_or(0), first.opt::<u32>(5)?.unwrap_or(0));
        let mut sites = Vec::new();
        for row in group {
            if let (Some(site), Some(node), Some(VALID)) = (row.opt_text(6)?, row.opt(7)?, row.opt::<i64>(8)?)
                && counts(node_state(node)?)
            {
                sites.push(site);
            }
        }
        let sites: Vec<&str> = sites.iter().map(String::as_str).collect();
        let is = (rule.missing(&sites), rule.surplus(&sites));
        if is != noted {
            let object = numbers(&first.0[..3]);
            let text = format!("object {object}: noted as (missing, surplus) {noted:?}, its replicas say {is:?}");
            out.push(text.into_bytes());
        }
        Ok(())
    }
}

fn numbers(values: &[crate::sql::Value]) -> String {
    let text = |v: &crate::sql::Value| match v {
        crate::sql::Value::Int(n) => n.to_string(),
        other => format!("{other:?}"),
    };
    values.iter().map(text).collect::<Vec<_>>().join(", ")
}
