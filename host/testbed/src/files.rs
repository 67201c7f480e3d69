//! Files that a topology or a setting names.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Most bytes of a trace or a list of samples.
pub const MAX_FILE: u64 = 64 << 20;

/// Reads a regular file of text of at most `most` bytes.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn read(path: &Path, most: u64) -> Result<String, String> {
    let fail = |e: String| format!("{}: {e}", path.display());
    // A pipe or a device would be waited for.
    let kind = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
    if !kind.is_file() {
        return Err(fail("not a regular file".into()));
    }
    let file = File::open(path).map_err(|e| fail(e.to_string()))?;
    let mut text = String::new();
    file.take(most + 1)
        .read_to_string(&mut text)
        .map_err(|e| fail(e.to_string()))?;
    if text.len() as u64 > most {
        return Err(fail(format!("more than {most} bytes")));
    }
    Ok(text)
}

/// What `kuroshio_core::wan::setting` asks for: files by names relative to a folder.
pub(crate) fn beside(folder: &Path) -> impl FnMut(&str) -> Result<String, String> {
    move |name| read(&folder.join(name), MAX_FILE)
}
