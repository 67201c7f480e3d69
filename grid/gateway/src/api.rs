//! What WebDAV has no words for.
//!
//! ```text
//!   GET /.kuroshio/where/PATH -> {"path","size_bytes","copies","fragments":[{"index","offset_bytes","size_bytes",
//!                                 "blake3","replicas":[{"node","site","host","state","up"}]}]}
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use hyper::{Method, StatusCode};
use kuroshio_client::v1;
use kuroshio_service::body::{self, Answer};
use serde_json::{Value, json};

use crate::headers::shown;
use crate::refusal::Refusal;
use crate::session::Session;

/// Paths that are not files of the grid.
pub const PREFIX: &[u8] = b"/.kuroshio/";

/// Answers a request below [`PREFIX`].
pub async fn answer(session: &Arc<Session>, method: &Method, rest: &[u8]) -> Result<Answer, Refusal> {
    let Some(path) = rest.strip_prefix(b"where").filter(|p| p.starts_with(b"/")) else {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "only /.kuroshio/where/PATH is there",
        ));
    };
    if method != Method::GET {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "GET is valid here"));
    }
    let asked = path.to_vec();
    let (found, nodes) = session
        .ask(move |grid| Ok((grid.locate(&asked)?, grid.nodes()?)))
        .await?;
    Ok(body::json(StatusCode::OK, &describe(path, &found, &nodes)))
}

fn describe(path: &[u8], found: &v1::ReadGrant, nodes: &[v1::Node]) -> Value {
    let nodes = nodes
        .iter()
        .map(|n| (n.name.as_str(), n))
        .collect::<HashMap<_, _>>();
    let replica = |place: &v1::Place| {
        let node = nodes.get(place.node.as_str());
        json!({
            "node": place.node, "state": place.state, "up": place.up,
            "site": node.map(|n| &n.site), "host": node.map(|n| &n.host),
        })
    };
    let mut offset = 0;
    let fragments = found.fragments.iter().map(|fragment| {
        let digest = fragment
            .digest
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>();
        let value = json!({
            "index": fragment.index, "offset_bytes": offset, "size_bytes": fragment.size_bytes,
            "blake3": digest, "replicas": fragment.places.iter().map(replica).collect::<Vec<_>>(),
        });
        offset += fragment.size_bytes;
        value
    });
    let fragments = fragments.collect::<Vec<_>>();
    let attr = found.attr.clone().unwrap_or_default();
    json!({
        "path": shown(path), "size_bytes": attr.size_bytes, "copies": attr.copies, "owner": attr.owner,
        "group": attr.group, "mode": attr.mode, "fragments": fragments,
    })
}
