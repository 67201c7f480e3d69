//! Extended attributes; access lists are two of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::Errno;
use kuroshio_client::v1::{self, Actor, request::Op, response::Result as Answer};

use crate::acl;
use crate::fs::{Core, unexpected};

/// Set by the kernel for programs with rights of their own; a mount honours none, so there are none.
const CAPABILITY: &[u8] = b"security.capability";

/// Which access list an attribute is: whether it is a directory's default.
fn list_of(name: &[u8]) -> Option<bool> {
    match name {
        acl::ACCESS => Some(false),
        acl::DEFAULT => Some(true),
        _ => None,
    }
}

fn request(name: &[u8], value: &[u8], flags: i32) -> v1::XattrRequest {
    v1::XattrRequest {
        path: Vec::new(),
        name: name.to_vec(),
        value: value.to_vec(),
        create: flags & libc::XATTR_CREATE != 0,
        replace: flags & libc::XATTR_REPLACE != 0,
    }
}

fn list_request(defaults: bool, entries: Vec<v1::AclEntry>) -> v1::AclRequest {
    v1::AclRequest {
        path: Vec::new(),
        defaults,
        entries,
    }
}

impl Core {
    /// Value of an attribute.
    pub fn get_xattr(&self, ino: u64, name: &OsStr, actor: Option<Actor>) -> Result<Vec<u8>, Errno> {
        let name = name.as_bytes();
        if name == CAPABILITY {
            return Err(Errno::ENODATA);
        }
        let Some(defaults) = list_of(name) else {
            return match self.ask(ino, 0, actor, Op::GetXattr(request(name, &[], 0)))? {
                Answer::Xattr(reply) => Ok(reply.value),
                other => Err(unexpected(&other)),
            };
        };
        match self.ask(ino, 0, actor, Op::GetAcl(list_request(defaults, Vec::new())))? {
            Answer::Acl(reply) if reply.entries.is_empty() => Err(Errno::ENODATA),
            Answer::Acl(reply) => Ok(acl::to_bytes(&reply.entries, &self.ids)),
            other => Err(unexpected(&other)),
        }
    }

    /// Names of the attributes, each ended by a zero byte.
    pub fn list_xattr(&self, ino: u64, actor: Option<Actor>) -> Result<Vec<u8>, Errno> {
        let names = match self.ask(ino, 0, actor.clone(), Op::ListXattr(request(&[], &[], 0)))? {
            Answer::Xattr(reply) => reply.names,
            other => return Err(unexpected(&other)),
        };
        let mut out = Vec::new();
        for name in names {
            out.extend_from_slice(&name);
            out.push(0);
        }
        for (defaults, name) in [(false, acl::ACCESS), (true, acl::DEFAULT)] {
            let list = Op::GetAcl(list_request(defaults, Vec::new()));
            if let Answer::Acl(reply) = self.ask(ino, 0, actor.clone(), list)?
                && !reply.entries.is_empty()
            {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        Ok(out)
    }

    /// Sets an attribute.
    pub fn set_xattr(
        &self,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        actor: Option<Actor>,
    ) -> Result<(), Errno> {
        let name = name.as_bytes();
        if name == CAPABILITY {
            return Err(Errno::EOPNOTSUPP);
        }
        let op = match list_of(name) {
            None => Op::SetXattr(request(name, value, flags)),
            Some(defaults) => Op::SetAcl(list_request(defaults, acl::from_bytes(value, &self.ids)?)),
        };
        let is_list = list_of(name).is_some();
        self.ask(ino, 0, actor, op)?;
        if is_list {
            self.forget_attributes(ino);
        }
        Ok(())
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, ino: u64, name: &OsStr, actor: Option<Actor>) -> Result<(), Errno> {
        let name = name.as_bytes();
        let Some(defaults) = list_of(name) else {
            self.ask(ino, 0, actor, Op::RemoveXattr(request(name, &[], 0)))?;
            return Ok(());
        };
        self.ask(ino, 0, actor, Op::SetAcl(list_request(defaults, Vec::new())))?;
        self.forget_attributes(ino);
        Ok(())
    }
}
