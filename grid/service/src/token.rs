//! Tokens: JSON Web Tokens in the WLCG profile (WLCG Common JWT Profiles 1.0), signed with ES256 by
//! the service's own key and checked by the `jsonwebtoken` library.
//!
//! A right that one other service alone is to check may be signed with a secret that both have (HS256, the header's `kid` says
//! whose): some 30 times cheaper at both ends. Which algorithm a token may have follows from the key that is meant for it, never
//! from its header alone.
//!
//! Claims: `wlcg.ver`, `iss`, `sub`, `aud`, `scope`, `iat`, `exp`, `jti`. A scope is a list of
//! `storage.read:PATH` and `storage.modify:PATH` (the path and all below it), and of this service's
//! own `kuroshio.lease` (ask for rate leases), `kuroshio.plan` (change the rate plan), and, at a grid's
//! metadata service, `kuroshio.admin` (everything) and `kuroshio.node` (be the node that `sub` names).

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

/// What the first ticket of a service allows: everything.
pub const DEFAULT_SCOPE: &str = "storage.read:/ storage.modify:/ kuroshio.lease kuroshio.plan";
/// Scopes without a path.
const PLAIN_SCOPES: [&str; 4] = [
    "kuroshio.lease",
    "kuroshio.plan",
    "kuroshio.admin",
    "kuroshio.node",
];
/// A longer token is refused unread.
pub const MAX_TOKEN_BYTES: usize = 8192;
/// Clocks of two hosts may differ by this much.
const LEEWAY_S: u64 = 5;

/// The claims of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    /// Version of the WLCG profile.
    #[serde(rename = "wlcg.ver")]
    pub wlcg_ver: String,
    /// Who signed: `urn:kuroshio:` and the pin.
    pub iss: String,
    /// Whose token it is.
    pub sub: String,
    /// For which services: the issuer itself, or those that it gives rights to.
    pub aud: String,
    /// What is allowed, separated by blanks.
    pub scope: String,
    /// The groups that the subject is in.
    #[serde(rename = "wlcg.groups", default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Issued at, seconds since 1970.
    pub iat: u64,
    /// Ends at, seconds since 1970.
    pub exp: u64,
    /// Identity of this token, for logs.
    pub jti: String,
    /// Of a right to write an object: the file that it is for.
    #[serde(rename = "kuroshio.file", default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileFacts>,
}

/// What a right to write an object says of its file, so that the node can keep it beside the content. The issuer signs
/// it: a writer cannot give its content another's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Path in the namespace, at most 4,096 bytes; in the token in base64url. Empty: not known.
    #[serde(with = "path_text", default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<u8>,
    /// Name of the owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// How many fragments the file has; 0: not known.
    #[serde(default)]
    pub fragments: u32,
    /// Modification time, nanoseconds since 1970, if the writer gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ns: Option<i64>,
}

/// Bytes of a path as base64url.
mod path_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(path: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&URL_SAFE_NO_PAD.encode(path))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        URL_SAFE_NO_PAD.decode(text).map_err(de::Error::custom)
    }
}

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read files below a path.
    Read,
    /// Make, change and replace files below a path.
    Modify,
    /// Ask for, renew and give back rate leases; see the rate plan.
    Lease,
    /// Change the rate plan.
    Plan,
    /// Administer a grid.
    Admin,
    /// Be a node of a grid.
    Node,
}

impl Operation {
    fn scope_name(self) -> &'static str {
        match self {
            Self::Read => "storage.read",
            Self::Modify => "storage.modify",
            Self::Lease => "kuroshio.lease",
            Self::Plan => "kuroshio.plan",
            Self::Admin => "kuroshio.admin",
            Self::Node => "kuroshio.node",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scope_name())
    }
}

/// Why a token was not made or not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No `Authorization: Bearer` header.
    #[error("no token: send `Authorization: Bearer TOKEN` (the token of this service's ticket)")]
    Missing,
    /// Not a token of this service.
    #[error("wrong token: {0}")]
    Wrong(String),
    /// The token was right once.
    #[error("the token has expired: ask the service's keeper for another ticket")]
    Expired,
    /// Right token, but not for this.
    #[error("the token does not allow {operation} on {path} (its scope: {scope})")]
    Scope {
        /// What was asked.
        operation: Operation,
        /// On which path.
        path: String,
        /// What the token allows.
        scope: String,
    },
    /// A scope that no token can carry.
    #[error(
        "`{0}` is not a scope: use storage.read:/PATH, storage.modify:/PATH, kuroshio.lease, kuroshio.plan, \
         kuroshio.admin"
    )]
    BadScope(String),
    /// The signature could not be made.
    #[error("cannot sign a token: {0}")]
    Sign(String),
}

impl Claims {
    /// Whether this token allows `operation` on `path` (absolute, `/`-separated, without dots; the
    /// path counts only for [`Operation::Read`] and [`Operation::Modify`]).
    pub fn allow(&self, operation: Operation, path: &[u8]) -> Result<(), TokenError> {
        let granted = self
            .scope
            .split_ascii_whitespace()
            .any(|entry| match entry.split_once(':') {
                Some((name, root)) => name == operation.scope_name() && covers(root.as_bytes(), path),
                None => {
                    entry == operation.scope_name()
                        && !matches!(operation, Operation::Read | Operation::Modify)
                }
            });
        if granted {
            return Ok(());
        }
        let path = String::from_utf8_lossy(path).into_owned();
        Err(TokenError::Scope {
            operation,
            path,
            scope: self.scope.clone(),
        })
    }
}

/// Whether `path` is `root` or lies below it, by whole components.
fn covers(root: &[u8], path: &[u8]) -> bool {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    match path.strip_prefix(root) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

/// Checks that every entry of a scope is one that this service understands.
pub fn check_scope(scope: &str) -> Result<(), TokenError> {
    let mut entries = scope.split_ascii_whitespace().peekable();
    if entries.peek().is_none() {
        return Err(TokenError::BadScope(String::new()));
    }
    for entry in entries {
        let known = match entry.split_once(':') {
            Some(("storage.read" | "storage.modify", path)) => {
                path.starts_with('/') && !path.split('/').any(|c| c == "..")
            }
            Some(_) => false,
            None => PLAIN_SCOPES.contains(&entry),
        };
        if !known {
            return Err(TokenError::BadScope(entry.to_owned()));
        }
    }
    Ok(())
}

/// Seconds since 1970 by the wall clock.
pub fn now_unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// Signs `claims` with a PKCS #8 P-256 key.
pub fn sign(claims: &Claims, pkcs8_der: &[u8]) -> Result<String, TokenError> {
    let key = EncodingKey::from_ec_der(pkcs8_der);
    jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &key)
        .map_err(|e| TokenError::Sign(e.to_string()))
}

/// Signs `claims` with the secret that the issuer shares with the service `keeper`.
pub fn sign_shared(claims: &Claims, keeper: &str, secret: &[u8]) -> Result<String, TokenError> {
    let header = Header {
        kid: Some(keeper.to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(secret))
        .map_err(|e| TokenError::Sign(e.to_string()))
}

/// The service with whose shared secret a token says that it is signed; none if it says that it has the issuer's own signature.
pub fn keeper_of(token: &str) -> Option<String> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let header = jsonwebtoken::decode_header(token).ok()?;
    (header.alg == Algorithm::HS256).then_some(header.kid).flatten()
}

/// What every token of a service must say.
fn rules(algorithm: Algorithm, name: &str, audience: &str) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY_S;
    validation.set_audience(&[audience]);
    validation.set_issuer(&[name]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation
}

/// Checks tokens of one service.
pub struct Verifier {
    key: DecodingKey,
    validation: Validation,
    /// The same for those that are signed with a shared secret.
    shared_validation: Validation,
    /// The checker's own shared secret.
    secret: Option<DecodingKey>,
}

impl Verifier {
    /// A verifier for tokens signed by `public_point` (uncompressed P-256 point) as issuer `name`, for itself.
    pub fn new(public_point: &[u8], name: &str) -> Self {
        Self::for_audience(public_point, name, name)
    }

    /// A verifier for tokens signed by `public_point` as issuer `name`, for the services named `audience`.
    pub fn for_audience(public_point: &[u8], name: &str, audience: &str) -> Self {
        Self {
            key: DecodingKey::from_ec_der(public_point),
            validation: rules(Algorithm::ES256, name, audience),
            shared_validation: rules(Algorithm::HS256, name, audience),
            secret: None,
        }
    }

    /// Takes tokens too that are signed with this secret, which the issuer shares.
    #[must_use]
    pub fn with_secret(mut self, secret: &[u8]) -> Self {
        self.secret = Some(DecodingKey::from_secret(secret));
        self
    }

    /// The claims of a good token.
    pub fn check(&self, token: &str) -> Result<Claims, TokenError> {
        match &self.secret {
            Some(secret) if keeper_of(token).is_some() => decode(token, secret, &self.shared_validation),
            _ => decode(token, &self.key, &self.validation),
        }
    }

    /// The claims of a good token that is signed with `secret`.
    pub fn check_shared(&self, token: &str, secret: &[u8]) -> Result<Claims, TokenError> {
        decode(token, &DecodingKey::from_secret(secret), &self.shared_validation)
    }
}

fn decode(token: &str, key: &DecodingKey, validation: &Validation) -> Result<Claims, TokenError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenError::Wrong(format!("longer than {MAX_TOKEN_BYTES} bytes")));
    }
    match jsonwebtoken::decode::<Claims>(token, key, validation) {
        Ok(data) => Ok(data.claims),
        Err(e) => Err(match e.kind() {
            ErrorKind::ExpiredSignature => TokenError::Expired,
            ErrorKind::InvalidSignature => TokenError::Wrong("not signed by this service".into()),
            ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience => {
                TokenError::Wrong("made for another service".into())
            }
            _ => TokenError::Wrong("not a token of this service".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(scope: &str) -> Claims {
        Claims {
            wlcg_ver: "1.0".into(),
            iss: "i".into(),
            sub: "s".into(),
            aud: "a".into(),
            scope: scope.into(),
            groups: Vec::new(),
            iat: 0,
            exp: 0,
            jti: "j".into(),
            file: None,
        }
    }

    #[test]
    fn scopes_hold_by_whole_components() {
        let table: &[(&str, Operation, &[u8], bool)] = &[
            ("storage.read:/", Operation::Read, b"/", true),
            ("storage.read:/", Operation::Read, b"/a/b", true),
            ("storage.read:/a", Operation::Read, b"/a", true),
            ("storage.read:/a/", Operation::Read, b"/a/b", true),
            ("storage.read:/a", Operation::Read, b"/ab", false),
            ("storage.read:/a", Operation::Read, b"/", false),
            ("storage.read:/", Operation::Modify, b"/a", false),
            ("storage.modify:/", Operation::Read, b"/a", false),
            ("kuroshio.lease", Operation::Lease, b"", true),
            ("kuroshio.lease", Operation::Plan, b"", false),
            ("storage.read", Operation::Read, b"/a", false),
            ("", Operation::Read, b"/a", false),
        ];
        for (scope, operation, path, allowed) in table {
            assert_eq!(
                claims(scope).allow(*operation, path).is_ok(),
                *allowed,
                "{scope} {operation} {path:?}"
            );
        }
    }

    #[test]
    fn only_known_scopes_are_issued() {
        for good in [DEFAULT_SCOPE, "storage.read:/a/b", "kuroshio.plan"] {
            assert_eq!(check_scope(good), Ok(()));
        }
        for bad in [
            "",
            "storage.read",
            "storage.read:a",
            "storage.read:/a/../b",
            "openid",
            "storage.stage:/",
        ] {
            assert!(matches!(check_scope(bad), Err(TokenError::BadScope(_))), "{bad}");
        }
    }
}
