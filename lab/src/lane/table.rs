//! What was measured as one table.

use serde_json::Value;

use crate::report::Table;
use crate::result::RunResult;

/// A row for each cell: our figures, MPTCP's and mqvpn's.
pub(super) fn matrix(result: &RunResult) -> Table {
    let mut table = Table::new(
        "Goodput of one stream [Mbps]",
        &[
            "cell",
            "lanes [Mbps]",
            "one-way delays [ms]",
            "bundle",
            "best lane alone",
            "MPTCP",
            "share of the sum",
            "share of the best less header",
            "mqvpn: best path",
            "mqvpn",
            "mqvpn, reorder buffer",
        ],
    );
    table.remark = "mqvpn's columns are its published figures (HTTP/3 with BBR); ours are TCP with CUBIC. Share of the sum: of the \
                    lanes' capacities less all headers."
        .into();
    for (name, cell) in &result.measured {
        let pair = |key: &str| {
            let list = cell[key].as_array().into_iter().flatten();
            list.map(Value::to_string).collect::<Vec<_>>().join(" + ")
        };
        let number = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        let published = |key: &str| match cell.get("mqvpn_published") {
            None => String::new(),
            Some(all) if all[key].is_null() => "failed".into(),
            Some(all) => all[key].to_string(),
        };
        table = table.row([
            name.clone(),
            pair("rates_mbps"),
            pair("one_way_delays_ms"),
            number(&cell["goodput_mbps"]),
            number(&cell["best_alone_goodput_mbps"]),
            number(&cell["mptcp_goodput_mbps"]),
            number(&cell["share_of_sum"]),
            number(&cell["share_of_best_less_header"]),
            published("best_path_mbps"),
            published("bundled_mbps"),
            published("bundled_with_reorder_buffer_mbps"),
        ]);
    }
    table
}

/// A row for each run of `plb-deskew`; in virtual time nanoseconds, live microseconds.
pub(super) fn delays(result: &RunResult) -> Table {
    let unit = if result.mode == "sim" { "ns" } else { "us" };
    let mut table = Table::new(
        format!("Delay of a packet [{unit}]"),
        &["run", "packets", "least", "p50", "p99", "most"],
    );
    for (name, run) in &result.measured {
        let figure = |what: &str| run[format!("delay_{what}_{unit}")].to_string();
        table = table.row([
            name.clone(),
            run["packets"].to_string(),
            figure("min"),
            figure("p50"),
            figure("p99"),
            figure("max"),
        ]);
    }
    table
}
