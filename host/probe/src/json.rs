//! Reading members of foreign JSON.
//!
//! iperf3 writes numbers through C doubles, so a whole number may come as `1e+18`, and a flag as `1`.

use crate::error::ProbeError;
use serde_json::Value;

/// 2^63: iperf3 writes some of its -1 as unsigned.
const NEGATIVE: f64 = 9_223_372_036_854_775_808.0;

/// A whole number from 0 on; 0 when the member is missing.
///
/// # Errors
/// Another type, a fraction, a number below zero or beyond 2^64 - 1.
pub(crate) fn number(object: &Value, key: &str) -> Result<u64, ProbeError> {
    let wrong = |value: &Value| ProbeError::Protocol(format!("{key}: {value:.40} is not a whole number"));
    match object.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value
            .as_u64()
            .or_else(|| {
                let float = value.as_f64()?;
                let whole = float.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&float);
                // Whole and in range: the conversion is exact.
                whole.then_some(float as u64)
            })
            .ok_or_else(|| wrong(value)),
    }
}

/// As [`number`], at most `limit`; the error names both.
///
/// # Errors
/// As [`number`], and a number beyond the limit.
pub(crate) fn number_to(object: &Value, key: &str, limit: u64) -> Result<u64, ProbeError> {
    let n = number(object, key)?;
    if n > limit {
        return Err(ProbeError::Limit(format!("{key} {n}, at most {limit}")));
    }
    Ok(n)
}

/// A number that may have a fraction or be missing; never NaN or infinite.
///
/// # Errors
/// Another type.
pub(crate) fn float(object: &Value, key: &str) -> Result<f64, ProbeError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(0.0),
        Some(value) => value
            .as_f64()
            .filter(|f| f.is_finite())
            .ok_or_else(|| ProbeError::Protocol(format!("{key}: {value:.40} is not a number"))),
    }
}

/// A count where the other side writes -1, as a signed or an unsigned number, for "not known".
///
/// # Errors
/// Another type.
pub(crate) fn count(object: &Value, key: &str) -> Result<Option<u64>, ProbeError> {
    let float = float(object, key)?;
    // In between the conversion drops a fraction at most.
    Ok((0.0..NEGATIVE).contains(&float).then_some(float as u64))
}

/// A flag: true, or a number other than 0.
pub(crate) fn flag(object: &Value, key: &str) -> bool {
    match object.get(key) {
        Some(Value::Bool(b)) => *b,
        Some(value) => value.as_f64().is_some_and(|n| n != 0.0),
        None => false,
    }
}

/// A text of at most `limit` bytes, without control characters.
///
/// # Errors
/// Another type, or a text that is longer.
pub(crate) fn text(object: &Value, key: &str, limit: usize) -> Result<Option<String>, ProbeError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) if s.len() <= limit && !s.chars().any(char::is_control) => Ok(Some(s.clone())),
        Some(_) => Err(ProbeError::Protocol(format!(
            "{key}: not a text of at most {limit} bytes"
        ))),
    }
}
