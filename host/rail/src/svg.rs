//! A machine and its rails as a picture.
//!
//! ```text
//!     +- node 0, 32 GiB ---------+  +- node 1 ------+        cores as squares in the colour of their rail,
//!     | [0] [1] [2] [3]          |  | [4] [5] ...   |        those of one shared cache in one frame;
//!     |  rail 1                  |  |  rail 2       |        cards below the node they are at,
//!     +--------------------------+  +---------------+        joined to it by a line of their rail's colour
//!          | 0000:03:00.0 eth0          |
//! ```

use std::fmt::Write;

use crate::machine::{Card, Core, Machine};
use crate::rails::Rail;

/// Side of a core's square and the space around it.
const CORE: u32 = 46;
const GAP: u32 = 8;
/// Cores side by side in a node.
const COLUMNS: usize = 8;
/// Cores of a node that are drawn; the others are told in words.
const MAX_DRAWN: usize = 128;
const MARGIN: u32 = 24;
const CARD_HEIGHT: u32 = 66;
/// Colours of rails, told apart also by those who do not see red and green alike (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800",
];

/// The picture as a whole SVG file.
#[must_use]
pub fn svg(machine: &Machine, rails: &[Rail]) -> String {
    let mut body = String::new();
    let mut x = MARGIN;
    let top = 78;
    let boxes: Vec<NodeBox> = machine
        .nodes
        .iter()
        .map(|node| {
            let cores: Vec<&Core> = machine.cores.iter().filter(|c| c.node == node.node).collect();
            let columns = cores.len().clamp(1, COLUMNS) as u32;
            let rows = (cores.len().min(MAX_DRAWN) as u32)
                .div_ceil(COLUMNS as u32)
                .max(1);
            let width = (columns * (CORE + GAP) + GAP).max(230) + 12;
            let made = NodeBox {
                node: node.node,
                x,
                width,
                rows,
                cores,
            };
            x += width + MARGIN;
            made
        })
        .collect();
    let inner = boxes.iter().map(|b| b.rows).max().unwrap_or(1) * (CORE + GAP);
    let height = 54 + inner;
    for (b, node) in boxes.iter().zip(&machine.nodes) {
        draw_node(&mut body, b, node.memory_bytes, top, height, rails);
    }
    let cards_top = top + height + 46;
    let unknown_x = x;
    let (mut deepest, mut unknown) = (0, 0);
    let mut used: Vec<(u32, u32)> = Vec::new();
    for card in &machine.cards {
        let rail = rails.iter().find(|r| r.card.as_ref() == Some(&card.pci));
        let colour = rail.map_or("#777777", |r| colour(r.number));
        let home = card.node.and_then(|n| boxes.iter().find(|b| b.node == n));
        let (left, width, row) = match home {
            Some(b) => {
                let row = used.iter().filter(|(n, _)| *n == b.node).count() as u32;
                used.push((b.node, row));
                (b.x, b.width, row)
            }
            None => {
                unknown += 1;
                (unknown_x, 260, unknown - 1)
            }
        };
        let y = cards_top + row * (CARD_HEIGHT + 12);
        deepest = deepest.max(row + 1);
        if home.is_some() && row == 0 {
            let middle = left + width / 2;
            let _ = write!(
                body,
                "<line x1=\"{middle}\" y1=\"{}\" x2=\"{middle}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"4\"/>",
                top + height
            );
        }
        draw_card(&mut body, card, rail, colour, left, width, y);
    }
    if unknown > 0 {
        text(&mut body, unknown_x, cards_top - 14, 14, "node not known", false);
        x += 260 + MARGIN;
    }
    let bottom = cards_top + deepest * (CARD_HEIGHT + 12) + 8;
    let width = x.max(520);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{0}\" viewBox=\"0 0 {width} {0}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" fill=\"#1c2430\"><rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
        bottom + MARGIN
    );
    text(&mut out, MARGIN, 34, 20, &machine.name, true);
    let sum = format!(
        "{}, {}, {}, {}",
        count(machine.nodes.len(), "node"),
        count(machine.cores.len(), "core"),
        count(machine.cards.len(), "card"),
        count(rails.len(), "rail")
    );
    text(&mut out, MARGIN, 56, 13, &sum, false);
    out.push_str(&body);
    text(
        &mut out,
        MARGIN,
        bottom + 8,
        12,
        "A square is a core with its processing units; its colour is its rail's.",
        false,
    );
    out.push_str("</svg>\n");
    out
}

struct NodeBox<'a> {
    node: u32,
    x: u32,
    width: u32,
    rows: u32,
    cores: Vec<&'a Core>,
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn colour(number: u32) -> &'static str {
    COLOURS[(number as usize).wrapping_sub(1) % COLOURS.len()]
}

fn draw_node(out: &mut String, b: &NodeBox<'_>, memory_bytes: u64, top: u32, height: u32, rails: &[Rail]) {
    let _ = write!(
        out,
        "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{height}\" rx=\"8\" fill=\"#f2f5f9\" stroke=\"#8a96a8\"/>",
        b.x, b.width
    );
    let memory = memory_bytes as f64 / f64::from(1 << 30);
    text(
        out,
        b.x + 12,
        top + 24,
        15,
        &format!("node {}, {memory:.1} GiB", b.node),
        true,
    );
    if b.cores.is_empty() {
        text(out, b.x + 12, top + 50, 13, "memory without cores", false);
    }
    let mut cores = b.cores.clone();
    cores.sort_by_key(|c| (c.cache, c.core));
    for (i, core) in cores.iter().take(MAX_DRAWN).enumerate() {
        let x = b.x + 6 + GAP + (i % COLUMNS) as u32 * (CORE + GAP);
        let y = top + 38 + (i / COLUMNS) as u32 * (CORE + GAP);
        let rail = rails.iter().find(|r| r.cores.contains(&core.core));
        let (fill, ink) = rail.map_or(("#dde3eb", "#1c2430"), |r| (colour(r.number), "#ffffff"));
        // A heavier left edge where a shared cache begins.
        if i > 0 && i % COLUMNS != 0 && cores[i - 1].cache != core.cache {
            let _ = write!(
                out,
                "<line x1=\"{0}\" y1=\"{y}\" x2=\"{0}\" y2=\"{1}\" stroke=\"#1c2430\" stroke-width=\"2\"/>",
                x - GAP / 2,
                y + CORE
            );
        }
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{CORE}\" height=\"{CORE}\" rx=\"5\" fill=\"{fill}\"/>"
        );
        for (k, pu) in core.pus.iter().take(2).enumerate() {
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{}\" font-size=\"13\" text-anchor=\"middle\" fill=\"{ink}\">{pu}</text>",
                x + CORE / 2,
                y + if core.pus.len() > 1 {
                    20 + 17 * k as u32
                } else {
                    28
                }
            );
        }
    }
    if cores.len() > MAX_DRAWN {
        text(
            out,
            b.x + 12,
            top + height - 6,
            12,
            &format!("and {} more cores", cores.len() - MAX_DRAWN),
            false,
        );
    }
}

fn draw_card(out: &mut String, card: &Card, rail: Option<&Rail>, colour: &str, x: u32, width: u32, y: u32) {
    let _ = write!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{CARD_HEIGHT}\" rx=\"6\" fill=\"#ffffff\" stroke=\"{colour}\" stroke-width=\"3\"/>"
    );
    let names: Vec<&str> = card.interfaces.iter().map(|i| i.name.as_str()).collect();
    let title = rail.map_or_else(|| "no rail".to_owned(), |r| format!("rail {}", r.number));
    text(
        out,
        x + 10,
        y + 20,
        14,
        &format!(
            "{title}: {}",
            if names.is_empty() {
                "-".into()
            } else {
                names.join(" ")
            }
        ),
        true,
    );
    let rate = card.rate_bps().map_or_else(
        || "rate not told".to_owned(),
        |r| format!("{} Gbps", r as f64 / 1e9),
    );
    text(out, x + 10, y + 39, 12, &format!("{}, {rate}", card.pci), false);
    let room = (width / 6) as usize - 2;
    let model: String = card.model.chars().take(room).collect();
    text(out, x + 10, y + 56, 11, &model, false);
}

/// Text with what XML needs escaped; control characters are left out.
fn text(out: &mut String, x: u32, y: u32, size: u32, text: &str, bold: bool) {
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let _ = write!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{weight}>");
    for c in text.chars().take(120) {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.push_str("</text>");
}
