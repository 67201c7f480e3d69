//! A service's identity: one P-256 key that signs its TLS certificate and its tokens.
//!
//! State folder (mode 0700): `key.der` (PKCS #8), `cert.der` (self-signed X.509; only its key
//! matters, clients pin that), `token` (the first ticket's token), `address` (what tickets name).
//! All are made on first start and kept.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::ServiceError;
use crate::pin::Pin;
use crate::private;
use crate::ticket::Ticket;
use crate::token::{self, Claims, FileFacts, MAX_TOKEN_BYTES, Verifier};

/// How long the first ticket is good: one year, in seconds.
pub const DEFAULT_VALIDITY_S: u64 = 365 * 24 * 3600;
/// Longest key or certificate file that is read.
const MAX_DER_BYTES: u64 = 64 * 1024;
/// Characters of a line of PEM text.
const PEM_LINE: usize = 64;

/// Key, certificate and state folder of a service.
pub struct Identity {
    dir: PathBuf,
    key: KeyPair,
    cert_der: Vec<u8>,
    pin: Pin,
    made: bool,
}

impl Identity {
    /// Loads the identity in `dir`, or makes one there.
    pub fn open(dir: &Path) -> Result<Self, ServiceError> {
        private::make_dir(dir)?;
        let key_path = dir.join("key.der");
        let loaded = private::read(&key_path, MAX_DER_BYTES)?;
        let made = loaded.is_none();
        let key = match loaded {
            Some(der) => {
                let der = rustls::pki_types::PrivatePkcs8KeyDer::from(der);
                KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map_err(|e| {
                    ServiceError::Invalid(format!("{}: not a PKCS #8 P-256 key: {e}", key_path.display()))
                })?
            }
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
                    .map_err(|e| ServiceError::Crypto(format!("cannot make a key: {e}")))?;
                private::write(&key_path, key.serialized_der())?;
                key
            }
        };
        let cert_path = dir.join("cert.der");
        let cert_der = match private::read(&cert_path, MAX_DER_BYTES)? {
            Some(der) if !made => der,
            _ => {
                let der = self_signed(&key, &["kuroshio.invalid".to_owned()])?;
                private::write(&cert_path, &der)?;
                der
            }
        };
        let pin = Pin::of_spki(&key.subject_public_key_info());
        Ok(Self {
            dir: dir.to_owned(),
            key,
            cert_der,
            pin,
            made,
        })
    }

    /// As [`Self::open`], with a certificate for these host names and addresses, for clients that do not pin
    /// the key but are given the certificate. It is made anew when the names have changed.
    pub fn open_named(dir: &Path, names: &[String]) -> Result<Self, ServiceError> {
        let mut identity = Self::open(dir)?;
        let kept_path = dir.join("names");
        let wanted = names.join("\n");
        if private::read(&kept_path, MAX_DER_BYTES)?.as_deref() != Some(wanted.as_bytes()) {
            identity.cert_der = self_signed(&identity.key, names)?;
            private::write(&dir.join("cert.der"), &identity.cert_der)?;
            private::write(&kept_path, wanted.as_bytes())?;
        }
        Ok(identity)
    }

    /// The certificate as PEM text (RFC 7468).
    pub fn certificate_pem(&self) -> String {
        let base64 = base64::engine::general_purpose::STANDARD.encode(&self.cert_der);
        let lines = base64.as_bytes().chunks(PEM_LINE).map(String::from_utf8_lossy);
        let body = lines.map(|line| format!("{line}\n")).collect::<String>();
        format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
    }

    /// The fingerprint of the key.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// Whether [`Self::open`] made the key just now.
    pub fn is_first_start(&self) -> bool {
        self.made
    }

    /// The name of this service in its tokens (`iss` and `aud`).
    pub fn name(&self) -> String {
        format!("urn:kuroshio:{}", URL_SAFE_NO_PAD.encode(self.pin.as_bytes()))
    }

    /// DER of the certificate and of the PKCS #8 key, for TLS.
    pub(crate) fn tls_material(&self) -> (Vec<u8>, Vec<u8>) {
        (self.cert_der.clone(), self.key.serialized_der().to_vec())
    }

    /// What checks this service's tokens.
    pub fn verifier(&self) -> Verifier {
        Verifier::new(self.key.public_key_raw(), &self.name())
    }

    /// The public key that checks this identity's tokens (uncompressed P-256 point); see [`Verifier::new`].
    pub fn token_key(&self) -> &[u8] {
        self.key.public_key_raw()
    }

    /// Signs a token for `subject` that allows `scope` for `valid_s` seconds from now.
    pub fn issue(&self, subject: &str, scope: &str, valid_s: u64) -> Result<String, ServiceError> {
        self.issue_to(subject, &[], &self.name(), scope, valid_s)
    }

    /// As [`Self::issue`], for a subject in `groups` and the services named `audience`.
    pub fn issue_to(
        &self,
        subject: &str,
        groups: &[String],
        audience: &str,
        scope: &str,
        valid_s: u64,
    ) -> Result<String, ServiceError> {
        self.sign((subject, groups), audience, scope, valid_s, None)
    }

    /// A right to write an object of a file, for the services named `audience`.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_for_file(
        &self,
        subject: &str,
        audience: &str,
        scope: &str,
        valid_s: u64,
        file: FileFacts,
    ) -> Result<String, ServiceError> {
        self.sign((subject, &[]), audience, scope, valid_s, Some(file))
    }

    fn sign(
        &self,
        (subject, groups): (&str, &[String]),
        audience: &str,
        scope: &str,
        valid_s: u64,
        file: Option<FileFacts>,
    ) -> Result<String, ServiceError> {
        token::check_scope(scope)?;
        let now = token::now_unix_s();
        let claims = Claims {
            wlcg_ver: "1.0".into(),
            iss: self.name(),
            sub: subject.to_owned(),
            aud: audience.to_owned(),
            scope: scope.to_owned(),
            groups: groups.to_vec(),
            iat: now,
            exp: now.saturating_add(valid_s),
            jti: random_hex()?,
            file,
        };
        Ok(token::sign(&claims, self.key.serialized_der())?)
    }

    /// The first token of this service: made once, kept in the state folder, made again when it has
    /// ended.
    pub fn first_token(&self) -> Result<String, ServiceError> {
        let path = self.dir.join("token");
        if let Some(bytes) = private::read(&path, MAX_TOKEN_BYTES as u64)?
            && let Ok(text) = String::from_utf8(bytes)
            && self.verifier().check(text.trim()).is_ok()
        {
            return Ok(text.trim().to_owned());
        }
        let token = self.issue("ticket", token::DEFAULT_SCOPE, DEFAULT_VALIDITY_S)?;
        private::write(&path, token.as_bytes())?;
        Ok(token)
    }

    /// Keeps the address that tickets name; durable.
    pub fn keep_address(&self, address: &str) -> Result<(), ServiceError> {
        if self.address()?.as_deref() == Some(address) {
            return Ok(());
        }
        private::write(&self.dir.join("address"), address.as_bytes())
    }

    /// The address that was kept last.
    pub fn address(&self) -> Result<Option<String>, ServiceError> {
        let bytes = private::read(&self.dir.join("address"), 1024)?;
        Ok(bytes
            .and_then(|b| String::from_utf8(b).ok())
            .map(|s| s.trim().to_owned()))
    }

    /// A ticket for `address` (host and port) with `token`.
    pub fn ticket(&self, address: &str, token: String) -> Result<Ticket, ServiceError> {
        Ok(Ticket::new(address, self.pin, token)?)
    }
}

fn self_signed(key: &KeyPair, names: &[String]) -> Result<Vec<u8>, ServiceError> {
    let failed = |e: rcgen::Error| ServiceError::Crypto(format!("cannot make a certificate: {e}"));
    let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "kuroshio service");
    params.distinguished_name = name;
    Ok(params.self_signed(key).map_err(failed)?.der().to_vec())
}

/// 128 random bits as hex.
pub(crate) fn random_hex() -> Result<String, ServiceError> {
    let mut bytes = [0u8; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| ServiceError::Crypto("the system gives no random bytes".into()))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{Operation, TokenError};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let dir = tempfile::tempdir().expect("temp dir");
        let state = dir.path().join("state");
        let first = Identity::open(&state).expect("made");
        let token = first.first_token().expect("token");
        let again = Identity::open(&state).expect("loaded");
        assert!(first.is_first_start() && !again.is_first_start());
        assert_eq!(first.pin(), again.pin());
        assert_eq!(token, again.first_token().expect("kept"));
        for name in ["key.der", "cert.der", "token"] {
            let mode = std::fs::metadata(state.join(name))
                .expect(name)
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert_eq!(
            std::fs::metadata(&state).expect("dir").permissions().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        Identity::open(dir.path()).expect("made");
        let key = dir.path().join("key.der");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(Identity::open(dir.path()).is_err_and(|e| e.to_string().contains("0644")));
    }

    #[test]
    fn tokens_are_checked() {
        let dir = tempfile::tempdir().expect("temp dir");
        let one = Identity::open(&dir.path().join("one")).expect("one");
        let two = Identity::open(&dir.path().join("two")).expect("two");
        let token = one.issue("me", "storage.read:/pub", 60).expect("issued");
        let claims = one.verifier().check(&token).expect("good");
        assert_eq!(claims.sub, "me");
        assert!(claims.allow(Operation::Read, b"/pub/x").is_ok());
        assert!(matches!(two.verifier().check(&token), Err(TokenError::Wrong(_))));
        let mut broken = token.clone();
        let last = broken.pop().expect("some");
        broken.push(if last == 'A' { 'Q' } else { 'A' });
        assert!(matches!(one.verifier().check(&broken), Err(TokenError::Wrong(_))));
        assert!(matches!(
            one.verifier().check("garbage"),
            Err(TokenError::Wrong(_))
        ));
        let old = Claims {
            exp: token::now_unix_s() - 3600,
            ..claims
        };
        let old = token::sign(&old, one.key.serialized_der()).expect("signed");
        assert_eq!(one.verifier().check(&old).err(), Some(TokenError::Expired));
    }

    #[test]
    fn an_unsigned_token_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        let one = Identity::open(dir.path()).expect("one");
        let token = one.first_token().expect("token");
        let body = token.split('.').nth(1).expect("body");
        let none = URL_SAFE_NO_PAD.encode(br#"{"alg":"none","typ":"JWT"}"#);
        assert!(one.verifier().check(&format!("{none}.{body}.")).is_err());
    }
}
