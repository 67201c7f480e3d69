//! hwloc's objects into a [`Machine`].

use std::ffi::CStr;

use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::TypeFilter;

use crate::error::RailError;
use crate::machine::{Cache, Card, Core, Interface, MAX_CARDS, MAX_PUS, Machine, Node};
use crate::source::{MAX_XML_BYTES, Source};
use crate::sys::in_child;
use crate::sysfs::Roots;

/// PCI class of network controllers (PCI Code and ID Assignment, base class 02h).
const PCI_NETWORK: u16 = 0x02;

/// Reads a topology and what /sys and /proc add for this machine.
///
/// hwloc's reader of XML falls over on files that are damaged: what others wrote is read in a process of its own.
///
/// # Errors
/// A file that cannot be read or is no topology, or one beyond the limits.
pub fn discover(source: &Source, roots: &Roots) -> Result<Machine, RailError> {
    if *source == Source::Here {
        return read(source, roots);
    }
    check_file(source)?;
    let work = || {
        let read = read(source, roots).map_err(|e| e.to_string());
        serde_json::to_vec(&read).unwrap_or_default()
    };
    let answer = in_child(work).map_err(RailError::io("a process that reads the topology"))?;
    let read: Option<Result<Machine, String>> = answer.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let fell = || {
        Err(
            "--topology: hwloc fell over reading it: it is damaged; `lstopo FILE.xml` writes one it can read"
                .into(),
        )
    };
    read.unwrap_or_else(fell).map_err(RailError::BadInput)
}

/// What can be said of a file before it is read.
fn check_file(source: &Source) -> Result<(), RailError> {
    let (what, length) = match source {
        Source::Xml(path) => {
            let what = format!("--topology {}", path.display());
            let read = std::fs::metadata(path).map_err(|e| RailError::BadInput(format!("{what}: {e}")))?;
            (what, read.len())
        }
        Source::Text(text) => ("a topology".to_owned(), text.len() as u64),
        Source::Here | Source::Synthetic(_) => return Ok(()),
    };
    if length > MAX_XML_BYTES {
        return Err(RailError::BadInput(format!(
            "{what}: {length} bytes; at most {MAX_XML_BYTES} are read"
        )));
    }
    Ok(())
}

fn read(source: &Source, roots: &Roots) -> Result<Machine, RailError> {
    let topology = load(source)?;
    let here = *source == Source::Here;
    let pus = topology.objects_with_type(ObjectType::PU).count();
    if !(1..=MAX_PUS).contains(&pus) {
        return Err(RailError::BadInput(format!(
            "a topology of {pus} processing units: from 1 to {MAX_PUS} are valid"
        )));
    }
    let mut machine = Machine {
        name: name(&topology, here),
        here,
        ..Machine::default()
    };
    machine.nodes = nodes(&topology);
    machine.cores = cores(&topology);
    for node in &mut machine.nodes {
        let mine = machine.cores.iter().filter(|c| c.node == node.node);
        node.cores = mine.map(|c| c.core).collect();
    }
    machine.caches = caches(&topology, &mut machine.cores);
    machine.cards = cards(&topology, here.then_some(roots));
    note_cards(&mut machine);
    Ok(machine)
}

/// The topology itself; network cards are kept.
fn load(source: &Source) -> Result<Topology, RailError> {
    let no = |what: &str, e: &dyn std::fmt::Display| {
        RailError::BadInput(format!(
            "{what}: not a topology in hwloc's XML ({e}); `lstopo FILE.xml` writes one"
        ))
    };
    let builder = Topology::builder();
    let builder = match source {
        Source::Here => builder,
        Source::Xml(path) => {
            let what = format!("--topology {}", path.display());
            let xml =
                std::fs::read_to_string(path).map_err(|e| RailError::BadInput(format!("{what}: {e}")))?;
            builder.from_xml(&xml).map_err(|e| no(&what, &e))?
        }
        Source::Text(xml) => builder.from_xml(xml).map_err(|e| no("a topology", &e))?,
        Source::Synthetic(text) => builder.from_synthetic(text).map_err(|e| {
            RailError::BadInput(format!(
                "--topology synthetic:{text:.60}: {e}; see hwloc's synthetic topologies"
            ))
        })?,
    };
    let hwloc = |e: &dyn std::fmt::Display| RailError::Hwloc(e.to_string());
    let builder = builder
        .with_io_type_filter(TypeFilter::KeepImportant)
        .map_err(|e| hwloc(&e))?;
    builder.build().map_err(|e| match source {
        Source::Here => hwloc(&e),
        _ => RailError::BadInput(format!(
            "--topology: hwloc cannot load it ({e}); `lstopo FILE.xml` writes one it can"
        )),
    })
}

fn string(text: Option<&CStr>) -> Option<String> {
    text.map(|t| t.to_string_lossy().into_owned())
}

fn info(object: &TopologyObject, name: &str) -> Option<String> {
    let found = object
        .infos()
        .iter()
        .find(|i| i.name().to_bytes() == name.as_bytes());
    found.map(|i| i.value().to_string_lossy().into_owned())
}

fn name(topology: &Topology, here: bool) -> String {
    let root = topology.root_object();
    let host = if here { info(root, "HostName") } else { None };
    host.or_else(|| info(root, "DMIProductName"))
        .or_else(|| info(root, "HostName"))
        .unwrap_or_else(|| "machine".to_owned())
}

/// Numbers of an object's processing units, ascending.
fn pus(object: &TopologyObject) -> Vec<u32> {
    let set = object.cpuset();
    let bits = set.iter().flat_map(|s| s.iter_set());
    bits.map(|i| usize::from(i) as u32).collect()
}

fn node_numbers(object: &TopologyObject) -> Vec<u32> {
    let set = object.nodeset();
    let bits = set.iter().flat_map(|s| s.iter_set());
    bits.map(|i| usize::from(i) as u32).collect()
}

fn nodes(topology: &Topology) -> Vec<Node> {
    let objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    let mut nodes: Vec<Node> = objects
        .iter()
        .map(|object| Node {
            node: object.os_index().unwrap_or(0) as u32,
            memory_bytes: match object.attributes() {
                Some(ObjectAttributes::NUMANode(a)) => a.local_memory().map_or(0, u64::from),
                _ => 0,
            },
            ..Node::default()
        })
        .collect();
    nodes.sort_by_key(|n| n.node);
    let numbers: Vec<u32> = nodes.iter().map(|n| n.node).collect();
    for node in &mut nodes {
        let of = |n: u32| objects.iter().find(|o| o.os_index() == Some(n as usize)).copied();
        node.distances = distances(
            topology,
            of(node.node),
            &numbers.iter().filter_map(|n| of(*n)).collect::<Vec<_>>(),
        );
    }
    nodes
}

/// From one node to all, from the first matrix of latencies that has them all; else empty.
fn distances(topology: &Topology, from: Option<&TopologyObject>, to: &[&TopologyObject]) -> Vec<u64> {
    let Some(from) = from else { return Vec::new() };
    let matrices = topology.distances_with_name("NUMALatency").unwrap_or_default();
    matrices
        .iter()
        .find_map(|m| {
            let mine = || {
                m.object_distances()
                    .filter(|((a, _), _)| a.and_then(TopologyObject::os_index) == from.os_index())
            };
            let one = |to: &&TopologyObject| {
                mine()
                    .find(|((_, b), _)| b.and_then(TopologyObject::os_index) == to.os_index())
                    .map(|(_, d)| d)
            };
            to.iter().map(one).collect::<Option<Vec<u64>>>()
        })
        .unwrap_or_default()
}

fn cores(topology: &Topology) -> Vec<Core> {
    let mut objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::Core).collect();
    if objects.is_empty() {
        // A machine that does not tell its cores: every processing unit is one.
        objects = topology.objects_with_type(ObjectType::PU).collect();
    }
    let with_memory: Vec<(u32, Vec<u32>)> = topology
        .objects_with_type(ObjectType::NUMANode)
        .map(|n| (n.os_index().unwrap_or(0) as u32, pus(n)))
        .collect();
    let mut cores: Vec<Core> = objects
        .into_iter()
        .filter_map(|object| {
            let pus = pus(object);
            let core = *pus.first()?;
            // The node with the fewest processing units around this one is the nearest: memory that several
            // nodes share (high bandwidth memory, CXL) has more.
            let near = with_memory.iter().filter(|(_, all)| all.contains(&core));
            let node = near.min_by_key(|(n, all)| (all.len(), *n)).map_or(0, |(n, _)| *n);
            let package = object
                .ancestors()
                .find(|a| a.object_type() == ObjectType::Package);
            Some(Core {
                core,
                pus,
                node,
                package: package.and_then(TopologyObject::os_index).map(|i| i as u32),
                cache: None,
            })
        })
        .collect();
    cores.sort_by_key(|c| c.core);
    cores
}

fn caches(topology: &Topology, cores: &mut [Core]) -> Vec<Cache> {
    let kinds = [
        (ObjectType::L2Cache, 2),
        (ObjectType::L3Cache, 3),
        (ObjectType::L4Cache, 4),
    ];
    let mut caches = Vec::new();
    for (kind, level) in kinds {
        for object in topology.objects_with_type(kind) {
            let all = pus(object);
            let below: Vec<u32> = cores.iter().map(|c| c.core).filter(|c| all.contains(c)).collect();
            let (Some(&first_pu), true) = (all.first(), below.len() > 1) else {
                continue;
            };
            let bytes = match object.attributes() {
                Some(ObjectAttributes::Cache(a)) => a.size().map_or(0, u64::from),
                _ => 0,
            };
            for core in cores.iter_mut().filter(|c| below.contains(&c.core)) {
                core.cache = Some(first_pu);
            }
            caches.push(Cache {
                first_pu,
                level,
                bytes,
                cores: below,
            });
        }
    }
    caches
}

fn cards(topology: &Topology, roots: Option<&Roots>) -> Vec<Card> {
    let mut cards = Vec::new();
    for object in topology.pci_devices() {
        let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else {
            continue;
        };
        let address = format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            pci.domain(),
            pci.bus_id(),
            pci.bus_device(),
            pci.function()
        );
        let mut interfaces = interfaces_below(object);
        if let Some(roots) = roots {
            for name in roots.interface_names(&address) {
                if !interfaces.contains(&name) {
                    interfaces.push(name);
                }
            }
        }
        if interfaces.is_empty() && pci.class_id() >> 8 != PCI_NETWORK {
            continue;
        }
        let near = object
            .ancestors()
            .find(|a| a.cpuset().is_some())
            .map(node_numbers)
            .unwrap_or_default();
        let node = match (near.as_slice(), roots.and_then(|r| r.numa_node(&address))) {
            (&[one], _) => Some(one),
            (_, sysfs) => sysfs,
        };
        // GB/s of hwloc: bytes. Above 2^53 bit/s nothing is lost that matters.
        let gigabytes = f64::from(pci.link_speed());
        cards.push(Card {
            model: model(object, pci.vendor_id(), pci.device_id()),
            node,
            near_nodes: node.map_or(near, |n| vec![n]),
            pci_rate_bps: (gigabytes > 0.0 && gigabytes < 1e6).then_some((gigabytes * 8e9) as u64),
            interfaces: interfaces
                .into_iter()
                .map(|name| match roots {
                    Some(roots) => roots.interface(&name),
                    None => Interface {
                        name,
                        ..Interface::default()
                    },
                })
                .collect(),
            interrupts: roots.map(|r| r.interrupts(&address)).unwrap_or_default(),
            pci: address,
        });
    }
    cards.sort_by(|a, b| a.pci.cmp(&b.pci));
    cards.truncate(MAX_CARDS);
    cards
}

fn interfaces_below(object: &TopologyObject) -> Vec<String> {
    let mut names: Vec<String> = object
        .io_children()
        .filter(|o| matches!(o.attributes(), Some(ObjectAttributes::OSDevice(a)) if a.device_type() == OSDeviceType::Network))
        .filter_map(|o| string(o.name()))
        .collect();
    names.sort();
    names
}

fn model(object: &TopologyObject, vendor: u16, device: u16) -> String {
    match (info(object, "PCIVendor"), info(object, "PCIDevice")) {
        (Some(vendor), Some(device)) => format!("{vendor} {device}"),
        (_, Some(device)) => device,
        _ => format!("PCI {vendor:04x}:{device:04x}"),
    }
}

fn note_cards(machine: &mut Machine) {
    if machine.cards.is_empty() {
        machine
            .notes
            .push("no network card is to be seen: rails are memory nodes with their cores".to_owned());
    }
    if machine.nodes.len() > 1 {
        for card in machine.cards.iter().filter(|c| c.node.is_none()) {
            machine.notes.push(format!(
                "card {}: the system does not say at which node it is (virtual machines answer -1); its rail is given a node in turn, \
                 and `rail plan --measure` compares",
                card.pci
            ));
        }
    }
}
