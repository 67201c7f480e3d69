//! The client's trust store: names for tickets, in `$XDG_CONFIG_HOME/kuroshio/trust.toml`, mode 0600.
//!
//! ```toml
//! [service.NAME]
//! address = "HOST:PORT"
//! pin = "sha256//..."
//! token = "..."
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ServiceError;
use crate::private;
use crate::ticket::Ticket;

/// Longest name of a service.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest trust file that is read.
pub const MAX_TRUST_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustFile {
    #[serde(default)]
    service: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    address: String,
    pin: String,
    token: String,
}

/// Names and their tickets.
pub struct TrustStore {
    path: PathBuf,
    tickets: BTreeMap<String, Ticket>,
}

impl TrustStore {
    /// Where the store of this user is: `$XDG_CONFIG_HOME/kuroshio/trust.toml`, else below
    /// `$HOME/.config`.
    pub fn default_path() -> Result<PathBuf, ServiceError> {
        let base = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute());
        let base = base.or_else(|| {
            let home = std::env::var_os("HOME")
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())?;
            Some(home.join(".config"))
        });
        match base {
            Some(base) => Ok(base.join("kuroshio").join("trust.toml")),
            None => Err(ServiceError::Invalid(
                "no place for the trust file: set HOME or XDG_CONFIG_HOME to an absolute path".into(),
            )),
        }
    }

    /// Reads the store; a missing file is an empty store.
    pub fn open(path: &Path) -> Result<Self, ServiceError> {
        let invalid = |text: String| ServiceError::Invalid(format!("{}: {text}", path.display()));
        let file = match private::read(path, MAX_TRUST_BYTES)? {
            None => TrustFile::default(),
            Some(bytes) => {
                let text = String::from_utf8(bytes).map_err(|e| invalid(e.to_string()))?;
                toml::from_str::<TrustFile>(&text).map_err(|e| invalid(e.message().to_owned()))?
            }
        };
        let mut tickets = BTreeMap::new();
        for (name, entry) in file.service {
            check_name(&name)?;
            let pin = entry
                .pin
                .parse()
                .map_err(|e| invalid(format!("service `{name}`: {e}")))?;
            let ticket = Ticket::new(&entry.address, pin, entry.token)
                .map_err(|e| invalid(format!("service `{name}`: {e}")))?;
            tickets.insert(name, ticket);
        }
        Ok(Self {
            path: path.to_owned(),
            tickets,
        })
    }

    /// The ticket kept as `name`.
    pub fn get(&self, name: &str) -> Result<&Ticket, ServiceError> {
        self.tickets.get(name).ok_or_else(|| {
            let known = self.tickets.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none yet".to_owned() } else { known };
            ServiceError::Invalid(format!(
                "no service named `{name}` is trusted (known: {known}); `kuroshio trust add {name}` reads its \
                 ticket from standard input; a local file with a colon is written ./{name}:..."
            ))
        })
    }

    /// All names and tickets, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Ticket)> {
        self.tickets.iter().map(|(name, ticket)| (name.as_str(), ticket))
    }

    /// Keeps `ticket` as `name`, in place of an earlier one; durable when this returns. Says whether
    /// there was one.
    pub fn add(&mut self, name: &str, ticket: Ticket) -> Result<bool, ServiceError> {
        check_name(name)?;
        let earlier = self.tickets.insert(name.to_owned(), ticket).is_some();
        self.save()?;
        Ok(earlier)
    }

    /// Forgets `name`; durable when this returns.
    pub fn remove(&mut self, name: &str) -> Result<(), ServiceError> {
        self.get(name)?;
        self.tickets.remove(name);
        self.save()
    }

    fn save(&self) -> Result<(), ServiceError> {
        let service = self.tickets.iter().map(|(name, ticket)| {
            let entry = Entry {
                address: ticket.addresses().to_owned(),
                pin: ticket.pin().to_string(),
                token: ticket.token().to_owned(),
            };
            (name.clone(), entry)
        });
        let file = TrustFile {
            service: service.collect(),
        };
        let text = toml::to_string(&file).map_err(|e| ServiceError::Invalid(e.to_string()))?;
        private::write(&self.path, text.as_bytes())
    }
}

/// A name is letters, digits, `-`, `_` and `.`, at most [`MAX_NAME_BYTES`], and begins with a letter
/// or digit.
pub fn check_name(name: &str) -> Result<(), ServiceError> {
    let good = name.len() <= MAX_NAME_BYTES
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(ServiceError::Invalid(format!(
        "`{name}` is not a name: letters, digits, `-`, `_` and `.`, a letter or digit first, at most \
         {MAX_NAME_BYTES}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin::Pin;
    use std::os::unix::fs::PermissionsExt;

    fn ticket(n: u8) -> Ticket {
        Ticket::new(&format!("h{n}:7420"), Pin::of_spki(&[n]), format!("a.b.c{n}")).expect("good parts")
    }

    #[test]
    fn tickets_are_kept_privately() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("kuroshio/trust.toml");
        let mut store = TrustStore::open(&path).expect("empty");
        assert!(!store.add("tokyo", ticket(1)).expect("kept"));
        assert!(!store.add("sandiego", ticket(2)).expect("kept"));
        assert!(store.add("tokyo", ticket(3)).expect("replaced"));
        assert_eq!(
            std::fs::metadata(&path).expect("file").permissions().mode() & 0o7777,
            0o600
        );
        let mut again = TrustStore::open(&path).expect("read");
        assert_eq!(again.get("tokyo").expect("known"), &ticket(3));
        again.remove("tokyo").expect("known");
        let error = TrustStore::open(&path)
            .expect("read")
            .get("tokyo")
            .expect_err("gone")
            .to_string();
        assert!(error.contains("sandiego"), "{error}");
    }

    #[test]
    fn a_readable_or_broken_store_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("trust.toml");
        TrustStore::open(&path)
            .expect("empty")
            .add("a", ticket(1))
            .expect("kept");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("chmod");
        assert!(TrustStore::open(&path).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        assert!(TrustStore::open(&path).is_ok());
        for text in [
            "[service.a]\naddress=\"h\"\npin=\"p\"\ntoken=\"t\"",
            "x = 1",
            "[service.a]",
            "\u{0}",
        ] {
            std::fs::write(&path, text).expect("write");
            assert!(TrustStore::open(&path).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "tokyo-1", "9.x_y"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "a:b", "ü", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
