//! A port's shape as it is written: one rate, or a rate for each of some streams.
//!
//! ```toml
//! shape = [{ stream = "dst port 5001", rate = "250Mbps" }, { stream = "udp", gap = "1510B", queue = "1MiB" }]
//! ceiling = "500Mbps"
//! ```

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, WireBytes};
use kuroshio_core::wan::{MAX_SHAPED_STREAMS, StreamFilter, StreamShape};
use kuroshio_core::wire::LineRate;
use serde::Deserialize;

use crate::raw::{parse, size};
use crate::topology::{MAX_QUEUE, TopologyError, default};

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum RawShape {
    Port(String),
    Streams(Vec<Rule>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    stream: String,
    rate: Option<String>,
    gap: Option<String>,
    queue: Option<String>,
}

/// The shapers of a port's streams.
pub(crate) fn streams(
    place: &str,
    rules: Vec<Rule>,
    wire: LineRate,
) -> Result<Vec<StreamShape>, TopologyError> {
    if !(1..=MAX_SHAPED_STREAMS).contains(&rules.len()) {
        return Err(TopologyError::new(
            format!("{place}: shape"),
            format!("{} streams: 1 to {MAX_SHAPED_STREAMS}", rules.len()),
        ));
    }
    let each = rules.into_iter().enumerate();
    each.map(|(number, rule)| stream(&format!("{place}: shape, stream {}", number + 1), rule, wire))
        .collect()
}

fn stream(place: &str, rule: Rule, wire: LineRate) -> Result<StreamShape, TopologyError> {
    let filter: StreamFilter = parse(place, "stream", &rule.stream)?;
    let spacing = match (rule.rate, rule.gap) {
        (Some(text), None) => {
            let rate: BitRate = parse(place, "rate", &text)?;
            if rate > wire.bit_rate() {
                return Err(TopologyError::new(
                    format!("{place}: rate"),
                    format!("{rate} is more than the wire's {wire}"),
                ));
            }
            Spacing::Rate(rate)
        }
        (None, Some(text)) => Spacing::Gap(WireBytes::new(at_most(place, "gap", &text)?)),
        _ => return Err(TopologyError::new(place, "either rate or gap")),
    };
    let queue = rule.queue.as_deref().unwrap_or(default::SHAPE_QUEUE);
    Ok(StreamShape {
        filter,
        spacing,
        queue_limit: FrameBytes::new(at_most(place, "queue", queue)?),
    })
}

fn at_most(place: &str, field: &str, text: &str) -> Result<u64, TopologyError> {
    let bytes = size(place, field, text)?;
    if bytes > MAX_QUEUE {
        return Err(TopologyError::new(
            format!("{place}: {field}"),
            format!("{text:?}: at most 4GiB"),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use crate::Topology;
    use kuroshio_core::pace::Spacing;
    use kuroshio_core::units::BitRate;

    fn read(lines: &str) -> Result<Topology, String> {
        let text = format!(
            "name = \"x\"\n[[router]]\nname = \"r\"\n[[host]]\nname = \"h\"\n[[host.port]]\nname = \"p\"\n\
             address = \"10.0.0.1/24\"\nrouter = \"r\"\n{lines}\n"
        );
        Topology::from_toml(&text).map_err(|e| e.to_string())
    }

    #[test]
    fn streams_and_their_ceiling_are_read() {
        let two = r#"shape = [{stream = "dst port 5001", rate = "250Mbps"}, {stream = "udp", gap = "1510B", queue = "1MiB"}]"#;
        let topology = read(&format!("{two}\nceiling = \"500Mbps\"")).expect("a topology");
        let port = &topology.hosts[0].ports[0];
        assert_eq!(port.streams.len(), 2);
        assert_eq!(port.streams[0].filter.destination_port, Some(5_001));
        assert_eq!(port.streams[1].queue_limit.get(), 1 << 20);
        let spacing = port.shaper.map(|s| s.spacing);
        assert_eq!(spacing, Some(Spacing::Rate(BitRate::from_mbps(500))));
        let without = read(two).expect("a topology").hosts[0].ports[0].shaper;
        let wire = Spacing::Rate(BitRate::from_mbps(1_000));
        assert_eq!(without.map(|s| s.spacing), Some(wire));
        assert!(read("shape = \"1Mbps\"").is_ok_and(|t| t.hosts[0].ports[0].streams.is_empty()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = |lines: &str| read(lines).expect_err(lines);
        assert!(error(r#"shape = [{stream = "port 1", rate = "1Mbps"}]"#).contains("stream 1: stream"));
        assert!(error(r#"shape = [{stream = "udp"}]"#).contains("either rate or gap"));
        assert!(error(r#"shape = [{stream = "udp", rate = "2Gbps"}]"#).contains("more than the wire's"));
        assert!(error("shape = []").contains("0 streams: 1 to 64"));
        assert!(error("ceiling = \"1Mbps\"").contains("only beside shape"));
        assert!(error("shape = [{stream = \"udp\", rate = \"1Mbps\"}]\ngap = \"12B\"").contains("only one"));
        assert!(
            error("shape = [{stream = \"udp\", rate = \"1Mbps\"}]\nceiling = \"2Gbps\"")
                .contains("more than")
        );
    }
}
