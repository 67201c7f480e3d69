//! Who asks, and what the token allows. The permissions of files are the catalog's.
//!
//! A token whose scope is narrower than the whole namespace is held to the path as the catalog resolves it:
//! no symbolic link leads out of it.

use kuroshio_catalog::{Caller, ErrorKind, PathOf, Place, Role, Stat, is_principal};
use kuroshio_proto::receipt::rights_key;
use kuroshio_proto::v1::{Actor, Code, Failure};
use kuroshio_proto::{MAX_NAME_BYTES, MAX_PATH_BYTES};
use kuroshio_service::{Claims, Operation, keeper_of, now_unix_s};

use crate::server::Inner;

/// Who asks.
#[derive(Clone)]
pub struct Who {
    claims: Claims,
    actor: bool,
    /// As the catalog sees it.
    pub caller: Caller,
}

fn unauthenticated(text: impl Into<String>) -> Failure {
    Failure::new(Code::Unauthenticated, text)
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, text)
}

impl Inner {
    /// Who presents this token.
    pub fn who(&self, token: &str) -> Result<Who, Failure> {
        let claims = self
            .verifier
            .check(token)
            .map_err(|e| unauthenticated(e.to_string()))?;
        Who::new(claims)
    }

    /// Whether `who` may do this at `path`, as far as the token goes.
    pub async fn may(&self, who: &Who, operation: Operation, path: &[u8]) -> Result<(), Failure> {
        let plain = plain_path(path)?;
        who.allows(operation, &plain)?;
        if who.claims.allow(operation, b"/").is_ok() {
            return Ok(());
        }
        let real = self.real_path(&plain).await?;
        who.allows(operation, &real)
    }

    /// Whether `who` may do this at a place, as far as the token goes. A place that begins at an inode ends in
    /// one name at most, and a symbolic link there is meant itself.
    pub async fn may_at(&self, who: &Who, operation: Operation, place: &Place) -> Result<(), Failure> {
        if place.path.starts_with(b"/") || place.dir == kuroshio_catalog::Ino::ROOT && place.path.is_empty() {
            let path = if place.path.is_empty() {
                b"/"
            } else {
                place.path.as_slice()
            };
            return self.may(who, operation, path).await;
        }
        if place.dir.0 == 0 {
            return self.may(who, operation, &place.path).await;
        }
        one_name(&place.path)?;
        if who.claims.allow(operation, b"/").is_ok() {
            return Ok(());
        }
        let mut real = self.ask(&Caller::admin(), PathOf { ino: place.dir }).await?;
        if !place.path.is_empty() {
            if real != b"/" {
                real.push(b'/');
            }
            real.extend_from_slice(&place.path);
        }
        who.allows(operation, &real)
    }

    /// Where a path leads: links followed; of what is not there, its directory and the last name.
    async fn real_path(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let admin = Caller::admin();
        let stat = |place: Place, follow: bool| self.try_ask(&admin, Stat { place, follow });
        match stat(Place::path(path), true).await {
            Ok(attr) => return self.ask(&admin, PathOf { ino: attr.ino }).await,
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(crate::convert::failure(&e)),
            Err(_) => {}
        }
        if stat(Place::path(path), false).await.is_ok() {
            return Err(Failure::new(Code::Access, "a symbolic link that leads nowhere"));
        }
        let at = path.iter().rposition(|b| *b == b'/').unwrap_or_default();
        let (folder, name) = path.split_at(at);
        let parent = self
            .ask(
                &admin,
                Stat {
                    place: Place::path(if folder.is_empty() { b"/" } else { folder }),
                    follow: true,
                },
            )
            .await?;
        let mut real = self.ask(&admin, PathOf { ino: parent.ino }).await?;
        if real == b"/" {
            real.clear();
        }
        real.extend_from_slice(name);
        Ok(real)
    }
}

impl Who {
    fn new(claims: Claims) -> Result<Self, Failure> {
        if !is_principal(&claims.sub) || !claims.groups.iter().all(|g| is_principal(g)) {
            return Err(unauthenticated("the token names a user or group that cannot be"));
        }
        let role = if claims.allow(Operation::Admin, b"").is_ok() {
            Role::Admin
        } else if claims.allow(Operation::Node, b"").is_ok() {
            Role::Service
        } else {
            Role::User
        };
        let groups = if claims.groups.is_empty() {
            vec![claims.sub.clone()]
        } else {
            claims.groups.clone()
        };
        let caller = Caller {
            user: claims.sub.clone(),
            groups,
            role,
        };
        Ok(Self {
            claims,
            actor: false,
            caller,
        })
    }

    /// This caller for another user; only the administrator may.
    pub fn acting(&self, actor: &Actor) -> Result<Self, Failure> {
        self.admin()?;
        let named = actor.user.is_empty() || is_principal(&actor.user);
        if !named || !actor.groups.iter().all(|g| is_principal(g)) {
            return Err(invalid("an actor's user or group that cannot be"));
        }
        let mut who = self.clone();
        who.actor = true;
        who.caller.groups = actor.groups.clone();
        if !actor.user.is_empty() {
            // What only the administrator may does not go along.
            let scopes = who.claims.scope.split_ascii_whitespace();
            let scopes = scopes.filter(|s| s.contains(':')).collect::<Vec<_>>();
            who.claims.scope = scopes.join(" ");
            who.claims.sub = actor.user.clone();
            who.caller.user = actor.user.clone();
            who.caller.role = Role::User;
        }
        Ok(who)
    }

    /// Whether the administrator asks for another user.
    pub fn is_actor(&self) -> bool {
        self.actor
    }

    /// Whether the token has ended since the connection was opened.
    pub fn check_time(&self) -> Result<(), Failure> {
        if self.claims.exp < now_unix_s() {
            return Err(unauthenticated("the token has expired: ask for another ticket"));
        }
        Ok(())
    }

    fn allows(&self, operation: Operation, path: &[u8]) -> Result<(), Failure> {
        let allowed = self.claims.allow(operation, path);
        allowed.map_err(|e| Failure::new(Code::Access, e.to_string()))
    }

    /// Refuses all but the administrator.
    pub fn admin(&self) -> Result<(), Failure> {
        let allowed = self.claims.allow(Operation::Admin, b"");
        allowed.map_err(|_| Failure::new(Code::Permission, "only the grid's administrator may do this"))
    }

    /// The node that asks.
    pub fn node(&self) -> Result<&str, Failure> {
        match self.claims.allow(Operation::Node, b"") {
            Ok(()) => Ok(&self.claims.sub),
            Err(_) => Err(Failure::new(
                Code::Permission,
                "only a node of the grid may do this",
            )),
        }
    }

    /// Whether a grant's token is this caller's and for this object. One that is signed with a node's secret could be of that
    /// node: it is no more than its receipts, without which nothing is published.
    pub fn holds(&self, inner: &Inner, token: &str, object: &str) -> Result<(), Failure> {
        let checked = match keeper_of(token) {
            Some(node) => inner
                .grants
                .check_shared(token, &rights_key(&inner.master.node_key(&node))),
            None => inner.grants.check(token),
        };
        let grant = checked.map_err(|e| unauthenticated(format!("grant: {e}")))?;
        if grant.sub != self.claims.sub {
            return Err(Failure::new(Code::Access, "the grant was given to another user"));
        }
        let allowed = grant.allow(Operation::Modify, object.as_bytes());
        allowed.map_err(|e| Failure::new(Code::Access, e.to_string()))
    }
}

/// Refuses what is not one name in a directory, or nothing.
fn one_name(path: &[u8]) -> Result<(), Failure> {
    if path.len() > MAX_NAME_BYTES {
        let text = format!(
            "a name of {} bytes; at most {MAX_NAME_BYTES} are valid",
            path.len()
        );
        return Err(Failure::new(Code::NameTooLong, text));
    }
    if path.iter().any(|b| matches!(b, 0 | b'/')) || matches!(path, b"." | b"..") {
        return Err(invalid("from an inode goes one name without slashes and dots"));
    }
    Ok(())
}

/// A path without `.` and doubled slashes; `..` is refused.
pub fn plain_path(path: &[u8]) -> Result<Vec<u8>, Failure> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Failure::new(
            Code::NameTooLong,
            format!(
                "a path of {} bytes; at most {MAX_PATH_BYTES} are valid",
                path.len()
            ),
        ));
    }
    if !path.starts_with(b"/") {
        return Err(invalid(format!(
            "`{}`: paths in the grid begin with a slash",
            String::from_utf8_lossy(path).escape_debug()
        )));
    }
    if path.contains(&0) {
        return Err(invalid("a path with a NUL byte"));
    }
    let mut plain = Vec::with_capacity(path.len());
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                return Err(invalid("`..` in a path: give the path without it"));
            }
            name if name.len() > MAX_NAME_BYTES => {
                return Err(Failure::new(
                    Code::NameTooLong,
                    format!(
                        "a name of {} bytes; at most {MAX_NAME_BYTES} are valid",
                        name.len()
                    ),
                ));
            }
            name => {
                plain.push(b'/');
                plain.extend_from_slice(name);
            }
        }
    }
    if plain.is_empty() {
        plain.push(b'/');
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain() {
        let table: [(&[u8], &[u8]); 4] = [
            (b"/", b"/"),
            (b"//a/./b/", b"/a/b"),
            (b"/...", b"/..."),
            (b"/a b", b"/a b"),
        ];
        for (given, plain) in table {
            assert_eq!(plain_path(given), Ok(plain.to_vec()));
        }
        let long = [b"/".as_slice(), &[b'x'; 256]].concat();
        let deep = b"/x".repeat(3000);
        for bad in [b"".as_slice(), b"a", b"/..", b"/a/../b", b"/a\0b", &long, &deep] {
            assert!(plain_path(bad).is_err(), "{bad:?}");
        }
    }
}
