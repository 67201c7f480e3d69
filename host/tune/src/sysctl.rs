//! Kernel parameters of this host: reading and writing `/proc/sys`.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Longest value that is read, bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// The tree of kernel parameters, `/proc/sys` on a running system.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Sysctls {
    /// The parameters of this system, of the calling process's network namespace.
    pub fn system() -> Self {
        Self::at(Path::new("/proc/sys"))
    }

    /// A tree of the same form somewhere else.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// The value of a parameter such as `net.ipv4.tcp_rmem`, its words separated by single spaces.
    ///
    /// # Errors
    /// What reading the file gives: `NotFound` when the kernel, or this namespace, has no such parameter.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let text = std::fs::read_to_string(self.path(name)?)?;
        if text.len() > MAX_VALUE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{name}: longer than {MAX_VALUE_BYTES} bytes"),
            ));
        }
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// What writing the file gives.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        // Opened without creating: a parameter that is not there is an error everywhere.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path(name)?)?;
        io::Write::write_all(&mut file, value.as_bytes())
    }

    /// Whether anybody may write a parameter here; the kernel shows some read-only inside a network namespace.
    pub fn is_writable(&self, name: &str) -> bool {
        self.path(name)
            .and_then(std::fs::metadata)
            .is_ok_and(|m| m.permissions().mode() & 0o222 != 0)
    }

    /// The third number of a triple such as `tcp_rmem`, or the first of a single one.
    pub fn limit(&self, name: &str) -> Option<u64> {
        numbers(&self.read(name).ok()?)?.last().copied()
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let fits = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        if !name.split('.').all(fits) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is not the name of a kernel parameter"),
            ));
        }
        let mut path = self.root.clone();
        path.extend(name.split('.'));
        Ok(path)
    }
}

/// The numbers of a parameter's value, or `None` when it holds anything else.
pub fn numbers(value: &str) -> Option<Vec<u64>> {
    let all: Option<Vec<u64>> = value.split_whitespace().map(|word| word.parse().ok()).collect();
    all.filter(|n| !n.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_and_names_are_checked() {
        let dir = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(dir.path().join("net/ipv4")).expect("mkdir");
        std::fs::write(dir.path().join("net/ipv4/tcp_rmem"), "4096\t131072\t6291456\n").expect("write");
        let tree = Sysctls::at(dir.path());
        assert_eq!(
            tree.read("net.ipv4.tcp_rmem").expect("value"),
            "4096 131072 6291456"
        );
        assert_eq!(tree.limit("net.ipv4.tcp_rmem"), Some(6_291_456));
        tree.write("net.ipv4.tcp_rmem", "1 2 3").expect("written");
        assert_eq!(tree.read("net.ipv4.tcp_rmem").expect("value"), "1 2 3");
        let missing = tree.write("net.ipv4.none", "1").expect_err("not there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        for name in ["", "net..x", "net/../../etc", "../x", "net.ipv4.tcp rmem"] {
            let refused = tree.read(name).expect_err(name);
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }

    #[test]
    fn only_numbers_are_numbers() {
        assert_eq!(
            numbers("4096 131072 6291456"),
            Some(vec![4096, 131_072, 6_291_456])
        );
        assert_eq!(numbers("cubic"), None);
        assert_eq!(numbers(""), None);
        assert_eq!(numbers("-1"), None);
    }
}
