//! Fields of requests and answers, and paths as requests name them.

use dav_server::davpath::DavPath;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::refusal::Refusal;

/// The text of a field, without blanks around it.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim)
}

/// Sets a field, if its value can be one.
pub fn set<B>(answer: &mut hyper::Response<B>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// The path in the grid that a request's path names: percent-decoded, without a slash at its end.
pub fn grid_path(url_path: &str) -> Result<Vec<u8>, Refusal> {
    let path = DavPath::new(url_path).map_err(|e| Refusal::bad(format!("`{url_path}`: not a path ({e})")))?;
    Ok(plain(path.as_bytes()))
}

/// A path without a slash at its end; the root is `/` (the library's parent of `/a` has no byte at all).
pub fn plain(path: &[u8]) -> Vec<u8> {
    match path.strip_suffix(b"/").unwrap_or(path) {
        b"" => b"/".to_vec(),
        rest => rest.to_vec(),
    }
}

/// A path for people.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// The name that etags have, without quotation marks.
pub fn tag_of(attr: &kuroshio_client::v1::Attr) -> String {
    // A content's generation is never given twice; a directory has none of its own.
    if attr.kind == kuroshio_client::v1::Kind::File as i32 {
        format!("{:x}-{:x}", attr.inode, attr.generation)
    } else {
        format!("{:x}-{:x}d", attr.inode, attr.mtime_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        let table: [(&str, &[u8]); 6] = [
            ("/", b"/"),
            ("/a/", b"/a"),
            ("/a%20b", b"/a b"),
            ("//a/./b", b"/a/b"),
            ("/%ff", b"/\xff"),
            ("/a/../b", b"/b"),
        ];
        for (url, path) in table {
            assert_eq!(grid_path(url).expect(url), path, "{url}");
        }
        assert_eq!(plain(b""), b"/");
        for bad in ["", "a", "/a%2fb", "/a%00", "/../a", "/\u{fc}", "*"] {
            assert!(grid_path(bad).is_err(), "{bad}");
        }
    }
}
