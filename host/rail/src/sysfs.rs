//! Interfaces, queues and interrupts of a card, from /sys and /proc.
//!
//! | file | what |
//! |---|---|
//! | `/sys/bus/pci/devices/ADDR/net/NAME` | interfaces of a card (for virtio: below `virtioN/net`) |
//! | `/sys/class/net/NAME/{address,speed,operstate}` | MAC address, Mb/s (-1: not known), state |
//! | `/sys/class/net/NAME/queues/{rx,tx}-N` | queues |
//! | `/sys/bus/pci/devices/ADDR/numa_node` | memory node, -1: not known |
//! | `/sys/bus/pci/devices/ADDR/msi_irqs/N`, `irq` | interrupts |
//! | `/proc/interrupts`, `/proc/irq/N/smp_affinity_list` | their names, and who takes them |

use std::path::{Path, PathBuf};

use crate::machine::{Interface, Interrupt};

/// Longest file that is read, bytes; /proc/interrupts has a column for each processing unit.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Interrupts of a card that are listed.
const MAX_INTERRUPTS: usize = 4_096;

/// Where /sys and /proc are: elsewhere in tests.
#[derive(Debug, Clone)]
pub struct Roots {
    /// /sys
    pub sys: PathBuf,
    /// /proc
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
        }
    }
}

fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut out = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut out).ok()?;
    Some(out.trim().to_owned())
}

/// Names in a folder, ascending; none when there is no such folder.
fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

impl Roots {
    fn device(&self, pci: &str) -> PathBuf {
        self.sys.join("bus/pci/devices").join(pci)
    }

    pub(crate) fn queue_folder(&self, interface: &str) -> PathBuf {
        self.sys.join("class/net").join(interface).join("queues")
    }

    pub(crate) fn irq_file(&self, irq: u32) -> PathBuf {
        self.proc
            .join("irq")
            .join(irq.to_string())
            .join("smp_affinity_list")
    }

    /// The memory node of a card: `None` for -1 and where there is no such file.
    pub(crate) fn numa_node(&self, pci: &str) -> Option<u32> {
        text(&self.device(pci).join("numa_node"))?.parse().ok()
    }

    /// Names of a card's interfaces.
    pub(crate) fn interface_names(&self, pci: &str) -> Vec<String> {
        let device = self.device(pci);
        let mut found = names(&device.join("net"));
        for below in names(&device).into_iter().filter(|n| n.starts_with("virtio")) {
            found.extend(names(&device.join(below).join("net")));
        }
        found
    }

    pub(crate) fn interface(&self, name: &str) -> Interface {
        let folder = self.sys.join("class/net").join(name);
        let queues = names(&folder.join("queues"));
        let count = |kind: &str| queues.iter().filter(|q| q.starts_with(kind)).count() as u32;
        let speed = text(&folder.join("speed")).and_then(|s| s.parse::<u64>().ok());
        Interface {
            name: name.to_owned(),
            mac: text(&folder.join("address")).filter(|m| !m.is_empty()),
            rate_bps: speed
                .filter(|s| *s > 0)
                .map(|mbps| mbps.saturating_mul(1_000_000)),
            state: text(&folder.join("operstate")),
            queues: (!queues.is_empty()).then(|| (count("rx-"), count("tx-"))),
        }
    }

    /// Interrupts of a card; for virtio the driver's names lead to them where there is no `msi_irqs`.
    pub(crate) fn interrupts(&self, pci: &str) -> Vec<Interrupt> {
        let device = self.device(pci);
        let mut numbers: Vec<u32> = names(&device.join("msi_irqs"))
            .iter()
            .filter_map(|n| n.parse().ok())
            .collect();
        if numbers.is_empty() {
            let legacy = text(&device.join("irq")).and_then(|t| t.parse::<u32>().ok());
            numbers.extend(legacy.filter(|n| *n > 0));
        }
        numbers.sort_unstable();
        numbers.truncate(MAX_INTERRUPTS);
        let table = text(&self.proc.join("interrupts")).unwrap_or_default();
        let known = interrupt_names(&table);
        let named = numbers.into_iter().filter_map(|irq| {
            // An interrupt that nobody asked for is not in the table.
            let name = known.iter().find(|(n, _)| *n == irq)?.1.clone();
            let pus = text(&self.irq_file(irq));
            Some(Interrupt { irq, name, pus })
        });
        named.collect()
    }
}

/// Number and name of each device's interrupt in /proc/interrupts: a column for each processing unit, the
/// controller, the hardware's number, then the names.
fn interrupt_names(table: &str) -> Vec<(u32, String)> {
    let mut lines = table.lines();
    let columns = lines.next().map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let words: Vec<&str> = rest.split_whitespace().skip(columns).collect();
            // `PCI-MSIX-0000:00:03.0   1-edge   virtio2-input.0`
            let name = words.get(2..)?.join(" ");
            Some((number.trim().parse().ok()?, name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(path, text).expect("a file");
    }

    #[test]
    fn a_card_s_files_are_read() {
        let here = tempfile::tempdir().expect("a folder");
        let roots = Roots {
            sys: here.path().join("sys"),
            proc: here.path().join("proc"),
        };
        let device = roots.device("0000:81:00.0");
        write(&device.join("numa_node"), "-1\n");
        assert_eq!(roots.numa_node("0000:81:00.0"), None);
        write(&device.join("numa_node"), "1\n");
        assert_eq!(roots.numa_node("0000:81:00.0"), Some(1));
        for irq in ["120", "121", "122"] {
            write(&device.join("msi_irqs").join(irq), "msix\n");
        }
        std::fs::create_dir_all(device.join("net/eth7")).expect("a folder");
        std::fs::create_dir_all(device.join("virtio3/net/eth8")).expect("a folder");
        let table = "            CPU0       CPU1\n 120:  1  0  IR-PCI-MSI-0000:81:00.0    0-edge      mlx5_async0@pci:0000:81:00.0\n \
                     121:  5  9  IR-PCI-MSI-0000:81:00.0    1-edge      mlx5_comp0@pci:0000:81:00.0\n NMI:   0   0   Non-maskable interrupts\n";
        write(&roots.proc.join("interrupts"), table);
        write(&roots.irq_file(121), "0-3,8\n");
        assert_eq!(roots.interface_names("0000:81:00.0"), ["eth7", "eth8"]);
        let interrupts = roots.interrupts("0000:81:00.0");
        let short: Vec<_> = interrupts
            .iter()
            .map(|i| (i.irq, i.name.as_str(), i.pus.as_deref()))
            .collect();
        assert_eq!(
            short,
            [
                (120, "mlx5_async0@pci:0000:81:00.0", None),
                (121, "mlx5_comp0@pci:0000:81:00.0", Some("0-3,8"))
            ]
        );
        let net = roots.sys.join("class/net/eth7");
        write(&net.join("speed"), "100000\n");
        write(&net.join("address"), "02:00:00:00:00:01\n");
        write(&net.join("operstate"), "up\n");
        for q in ["rx-0", "rx-1", "tx-0"] {
            std::fs::create_dir_all(net.join("queues").join(q)).expect("a folder");
        }
        let eth = roots.interface("eth7");
        assert_eq!((eth.rate_bps, eth.queues), (Some(100_000_000_000), Some((2, 1))));
        write(&net.join("speed"), "-1\n");
        assert_eq!(roots.interface("eth7").rate_bps, None);
        assert_eq!(
            roots.interface("none"),
            Interface {
                name: "none".into(),
                ..Interface::default()
            }
        );
    }
}
