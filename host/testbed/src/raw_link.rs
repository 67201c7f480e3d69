//! A link of the topology file: settings by the names and in the form of `kuroshio_core::wan::setting`.
//!
//! ```text
//! [[link]]            both directions
//! [link.reverse]      the second direction, where it differs
//! [[link.schedule]]   at = TIME and settings: changes at a time from the start, in both directions
//! [[link.reverse.schedule]]
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, Ratio, parse_bytes};
use kuroshio_core::wan::{LinkConfig, MAX_STEPS, Rate, Schedule, WanChange, WanConfig, setting};
use serde::Deserialize;

use crate::files;
use crate::net::Net;
use crate::raw::{Checked, at_most, index, name, parse, wire};
use crate::topology::{self as checked, MAX_CARRIES, MAX_NAME, TopologyError, default};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    name: String,
    between: [String; 2],
    capacity: Option<String>,
    trace: Option<String>,
    wire: Option<String>,
    one_way_delay: String,
    jitter: Option<String>,
    order: Option<String>,
    queue: Option<String>,
    aqm: Option<String>,
    loss: Option<String>,
    lose: Option<String>,
    duplicate: Option<String>,
    reorder: Option<String>,
    corrupt: Option<String>,
    rewrite: Option<String>,
    mtu: Option<String>,
    #[serde(default)]
    schedule: Vec<BTreeMap<String, String>>,
    schedule_repeat: Option<String>,
    #[serde(default)]
    carries: Vec<String>,
    #[serde(default)]
    reverse: Reverse,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reverse {
    capacity: Option<String>,
    trace: Option<String>,
    wire: Option<String>,
    one_way_delay: Option<String>,
    jitter: Option<String>,
    order: Option<String>,
    queue: Option<String>,
    aqm: Option<String>,
    loss: Option<String>,
    lose: Option<String>,
    duplicate: Option<String>,
    reorder: Option<String>,
    corrupt: Option<String>,
    rewrite: Option<String>,
    mtu: Option<String>,
    schedule: Option<Vec<BTreeMap<String, String>>>,
    schedule_repeat: Option<String>,
}

/// One direction as it is written: its settings, and the rest.
struct Direction<'a> {
    settings: BTreeMap<&'static str, &'a str>,
    wire: Option<&'a str>,
    schedule: &'a [BTreeMap<String, String>],
    repeat: Option<&'a str>,
}

/// The settings of a table by their names.
macro_rules! settings {
    ($table:expr) => {
        [
            ("capacity", &$table.capacity),
            ("trace", &$table.trace),
            ("jitter", &$table.jitter),
            ("order", &$table.order),
            ("queue", &$table.queue),
            ("aqm", &$table.aqm),
            ("loss", &$table.loss),
            ("lose", &$table.lose),
            ("duplicate", &$table.duplicate),
            ("reorder", &$table.reorder),
            ("corrupt", &$table.corrupt),
            ("rewrite", &$table.rewrite),
            ("mtu", &$table.mtu),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)))
    };
}

impl Link {
    pub fn name(&self) -> &String {
        &self.name
    }

    pub fn check(self, routers: &[String], folder: &Path) -> Checked<checked::Link> {
        let place = format!("link {:?}", self.name);
        name(&place, &self.name, MAX_NAME)?;
        let [a, b] = &self.between;
        let between = [
            index(&format!("{place}: between"), a, routers)?,
            index(&format!("{place}: between"), b, routers)?,
        ];
        if a == b {
            return Err(TopologyError::new(
                format!("{place}: between"),
                format!("{a:?} twice: two different routers"),
            ));
        }
        at_most(&format!("{place}: carries"), self.carries.len(), MAX_CARRIES)?;
        let carries = self
            .carries
            .iter()
            .map(|text| parse::<Net>(&place, "carries", text).map(|n| n.subnet()))
            .collect::<Checked<Vec<_>>>()?;
        let [there, back] = self.directions();
        let wan = [
            there.check(&place, folder)?,
            back.check(&format!("{place}, reverse"), folder)?,
        ];
        Ok(checked::Link {
            between,
            directions: [wan[0].plain(), wan[1].plain()],
            wan,
            carries,
            name: self.name,
        })
    }

    fn directions(&self) -> [Direction<'_>; 2] {
        let mut settings: BTreeMap<&'static str, &str> = settings!(self).collect();
        settings.insert("one_way_delay", &self.one_way_delay);
        let reverse = &self.reverse;
        let mut back = settings.clone();
        // A direction has one kind of rate: its own, where it has one.
        if reverse.capacity.is_some() || reverse.trace.is_some() {
            back.remove("capacity");
            back.remove("trace");
        }
        back.extend(settings!(reverse));
        back.extend(
            reverse
                .one_way_delay
                .as_deref()
                .map(|text| ("one_way_delay", text)),
        );
        let there = Direction {
            settings,
            wire: self.wire.as_deref(),
            schedule: &self.schedule,
            repeat: self.schedule_repeat.as_deref(),
        };
        let (schedule, repeat) = match &reverse.schedule {
            Some(own) => (own.as_slice(), reverse.schedule_repeat.as_deref()),
            None => (
                there.schedule,
                reverse.schedule_repeat.as_deref().or(there.repeat),
            ),
        };
        let back = Direction {
            settings: back,
            wire: reverse.wire.as_deref().or(there.wire),
            schedule,
            repeat,
        };
        [there, back]
    }
}

impl Direction<'_> {
    fn check(&self, place: &str, folder: &Path) -> Checked<WanConfig> {
        match (self.settings.get("capacity"), self.settings.get("trace")) {
            (Some(_), Some(_)) => {
                return Err(TopologyError::new(
                    place,
                    "both capacity and trace: only one of them",
                ));
            }
            (None, None) => {
                return Err(TopologyError::new(
                    place,
                    "neither capacity nor trace: one of them",
                ));
            }
            _ => {}
        }
        let queue = parse_bytes(default::LINK_QUEUE)
            .map_err(|e| TopologyError::new(format!("{place}: queue"), e.to_string()))?;
        let mut config = WanConfig::from(LinkConfig {
            // Replaced by the settings, of which one is the rate.
            capacity: BitRate::MIN,
            wire: self.wire.map(|text| wire(place, text)).transpose()?,
            one_way_delay: PicoDuration::ZERO,
            queue_limit: FrameBytes::new(queue),
            loss: Ratio::ZERO,
        });
        for (key, value) in &self.settings {
            one(place, key, value, folder)?.describe(&mut config);
        }
        if config.wire.is_some() && matches!(config.rate, Rate::Capacity(_, kuroshio_core::wan::Level::L1)) {
            let problem = "a capacity at L1 is a wire: leave wire out";
            return Err(TopologyError::new(format!("{place}: capacity"), problem));
        }
        config.schedule = self.schedule(place, folder)?;
        Ok(config)
    }

    fn schedule(&self, place: &str, folder: &Path) -> Checked<Schedule> {
        let place = format!("{place}, schedule");
        let mut steps = Vec::new();
        for table in self.schedule {
            let Some(at) = table.get("at") else {
                return Err(TopologyError::new(place, "a step needs at, such as at = \"10s\""));
            };
            let at: PicoDuration = parse(&place, "at", at)?;
            for (key, value) in table.iter().filter(|(key, _)| *key != "at") {
                steps.push((at, one(&format!("{place} at {at}"), key, value, folder)?));
            }
        }
        at_most(&format!("{place}: steps"), steps.len(), MAX_STEPS)?;
        steps.sort_by_key(|(at, _)| *at);
        let repeat: Option<PicoDuration> = self
            .repeat
            .map(|text| parse(&place, "schedule_repeat", text))
            .transpose()?;
        let last = steps.last().map(|(at, _)| *at);
        if let Some(period) = repeat
            && last.is_none_or(|last| last >= period)
        {
            return Err(TopologyError::new(
                format!("{place}: schedule_repeat"),
                format!("{period}: above the time of every step, of which there is one at least"),
            ));
        }
        Ok(Schedule { steps, repeat })
    }
}

fn one(place: &str, key: &str, value: &str, folder: &Path) -> Checked<WanChange> {
    setting(key, value, &mut files::beside(folder))
        .map_err(|e| TopologyError::new(format!("{place}: {}", e.key), e.problem))
}
