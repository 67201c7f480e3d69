//! Kernel parameters: those of a host's namespace, and one of the whole machine.

use std::io;
use std::path::PathBuf;

/// What every host gets, in its namespace: buffers that autotuning may raise to 1 GiB, no memory
/// of former connections, silent IPv6. Written before any device is made, as
/// `rps_default_mask` (added by the caller) is inherited by devices made afterwards.
pub(crate) const HOST: [(&str, &str); 9] = [
    ("net.ipv4.tcp_rmem", "4096 131072 1073741824"),
    ("net.ipv4.tcp_wmem", "4096 65536 1073741824"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv6.conf.all.disable_ipv6", "0"),
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.autoconf", "0"),
];

/// The file of a parameter.
pub(crate) fn path(name: &str) -> PathBuf {
    let mut path = PathBuf::from("/proc/sys");
    path.extend(name.split('.'));
    path
}

/// Sets a parameter of the calling thread's network namespace.
///
/// # Errors
/// The kernel's error, with the parameter's name.
pub(crate) fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(name), value)
        .map_err(|e| io::Error::new(e.kind(), format!("sysctl {name} = {value:?}: {e}")))
}

/// The mask of some cores as the kernel reads it: 32-bit groups in hexadecimal, highest first.
pub(crate) fn core_mask(cores: &[usize]) -> String {
    let groups = cores.iter().max().map_or(1, |max| max / 32 + 1);
    (0..groups)
        .rev()
        .map(|group| {
            let bits: u32 = cores
                .iter()
                .filter(|&&core| core / 32 == group)
                .fold(0, |bits, core| bits | 1 << (core % 32));
            format!("{bits:08x}")
        })
        .collect::<Vec<_>>()
        .join(",")
}

/// Frames that a core's receive queue may hold, at least, while the testbed runs. The kernel's
/// 1000 is 12 ms at 1 Gbps: one scheduling slice of the core on which the hosts run.
const BACKLOG: u32 = 30_000;

const BACKLOG_FILE: &str = "/proc/sys/net/core/netdev_max_backlog";

/// The machine's `netdev_max_backlog`, raised while this lives (root only; otherwise nothing is
/// changed). After `kill -9` it stays raised, which is harmless.
pub(crate) struct RaisedBacklog {
    before: Option<u32>,
}

impl RaisedBacklog {
    pub(crate) fn raise() -> Self {
        let before = std::fs::read_to_string(BACKLOG_FILE)
            .ok()
            .and_then(|text| text.trim().parse::<u32>().ok())
            .filter(|&now| now < BACKLOG)
            .filter(|_| std::fs::write(BACKLOG_FILE, BACKLOG.to_string()).is_ok());
        Self { before }
    }
}

impl Drop for RaisedBacklog {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = std::fs::write(BACKLOG_FILE, before.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_in_the_kernel_s_form() {
        assert_eq!(core_mask(&[1]), "00000002");
        assert_eq!(core_mask(&[0, 3]), "00000009");
        assert_eq!(core_mask(&[33]), "00000002,00000000");
        assert_eq!(core_mask(&[]), "00000000");
    }

    #[test]
    fn names_become_paths() {
        assert_eq!(
            path("net.ipv4.tcp_rmem").to_str(),
            Some("/proc/sys/net/ipv4/tcp_rmem")
        );
    }
}
