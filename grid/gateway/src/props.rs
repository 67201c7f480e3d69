//! Dead properties (RFC 4918, section 4): kept as one extended attribute of the file or directory, a JSON list.
//!
//! One attribute, so that a PROPPATCH takes effect whole or not at all; they move, and end, with the file. Two
//! PROPPATCH of one file through two gateways at the same moment: the later one stays.

use dav_server::fs::DavProp;
use kuroshio_client::v1::{Code, Failure, XattrRequest};
use kuroshio_client::{ClientError, Grid};
use serde::{Deserialize, Serialize};

use crate::MAX_PROPERTY_BYTES;

/// Name of the attribute.
const ATTRIBUTE: &[u8] = b"user.kuroshio.dav";

/// A property as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    namespace: Option<String>,
    name: String,
    prefix: Option<String>,
    /// The whole element.
    xml: String,
}

impl Kept {
    fn is(&self, prop: &DavProp) -> bool {
        self.name == prop.name && self.namespace == prop.namespace
    }

    fn into_prop(self) -> DavProp {
        DavProp {
            name: self.name,
            prefix: self.prefix,
            namespace: self.namespace,
            xml: Some(self.xml.into_bytes()),
        }
    }
}

fn load(grid: &Grid, path: &[u8]) -> Result<Vec<Kept>, ClientError> {
    match grid.xattr(path, ATTRIBUTE) {
        // What somebody else has written there is as good as nothing.
        Ok(value) => Ok(serde_json::from_slice(&value).unwrap_or_default()),
        Err(e) if e.code() == Some(Code::NoData) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn store(grid: &Grid, path: &[u8], kept: &[Kept]) -> Result<(), ClientError> {
    if kept.is_empty() {
        return match grid.remove_xattr(path, ATTRIBUTE) {
            Err(e) if e.code() == Some(Code::NoData) => Ok(()),
            done => done,
        };
    }
    let value = serde_json::to_vec(kept).map_err(|e| ClientError::Invalid(e.to_string()))?;
    if value.len() > MAX_PROPERTY_BYTES {
        return Err(ClientError::Failed(Failure::new(
            Code::NoSpace,
            format!(
                "properties of {} bytes; at most {MAX_PROPERTY_BYTES} are kept",
                value.len()
            ),
        )));
    }
    grid.set_xattr(XattrRequest {
        path: path.to_vec(),
        name: ATTRIBUTE.to_vec(),
        value,
        create: false,
        replace: false,
    })
}

/// All properties of `path`.
pub fn all(grid: &Grid, path: &[u8]) -> Result<Vec<DavProp>, ClientError> {
    Ok(load(grid, path)?.into_iter().map(Kept::into_prop).collect())
}

/// Sets (`true`) and removes properties, in order.
pub fn patch(grid: &Grid, path: &[u8], changes: &[(bool, DavProp)]) -> Result<(), ClientError> {
    let mut kept = load(grid, path)?;
    apply(&mut kept, changes);
    store(grid, path, &kept)
}

/// Gives `to` the properties of `from`.
pub fn copy(grid: &Grid, from: &[u8], to: &[u8]) -> Result<(), ClientError> {
    let kept = load(grid, from)?;
    store(grid, to, &kept)
}

fn apply(kept: &mut Vec<Kept>, changes: &[(bool, DavProp)]) {
    for (set, prop) in changes {
        kept.retain(|k| !k.is(prop));
        if *set {
            let xml = prop.xml.as_deref().unwrap_or_default();
            kept.push(Kept {
                namespace: prop.namespace.clone(),
                name: prop.name.clone(),
                prefix: prop.prefix.clone(),
                xml: String::from_utf8_lossy(xml).into_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prop(namespace: &str, name: &str, text: &str) -> DavProp {
        DavProp::new(name.into(), "x".into(), namespace.into(), text.into())
    }

    #[test]
    fn properties_are_told_apart_by_namespace_and_name() {
        let mut kept = Vec::new();
        let changes = [
            (true, prop("urn:a", "p", "1")),
            (true, prop("urn:b", "p", "2")),
            (true, prop("urn:a", "p", "3")),
            (false, prop("urn:c", "p", "")),
        ];
        apply(&mut kept, &changes);
        let texts = kept.iter().map(|k| k.xml.as_str()).collect::<Vec<_>>();
        assert_eq!(
            texts,
            ["<x:p xmlns:x=\"urn:b\">2</x:p>", "<x:p xmlns:x=\"urn:a\">3</x:p>"]
        );
        apply(&mut kept, &[(false, prop("urn:b", "p", ""))]);
        assert_eq!(kept.len(), 1);
        let back: Vec<Kept> =
            serde_json::from_slice(&serde_json::to_vec(&kept).expect("JSON")).expect("read");
        assert_eq!(back, kept);
    }
}
