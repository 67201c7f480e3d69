//! TLS to PostgreSQL: what of a connection string is about it, and the connector.
//!
//! | `sslmode` | the connection |
//! |---|---|
//! | `disable`, or none given | is not encrypted: a socket of the machine, or a network of its own |
//! | `require` | is encrypted; whose certificate it is, is not checked |
//! | `verify-full` | is encrypted; the certificate is of the host's name and signed by one in `sslrootcert` |
//!
//! The words are libpq's (PostgreSQL 17 documentation, 32.1.2 and 32.19). What libpq also knows (`prefer`, `allow`,
//! `verify-ca`) is refused: it either falls back without a word or checks half.

use super::{DbError, DbKind};
use postgres::config::SslMode;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Where libpq looks for root certificates, in the home folder.
const DEFAULT_ROOTS: &str = ".postgresql/root.crt";

/// How the connection is protected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    Encrypted,
    Verified(PathBuf),
}

/// A connection string without what is said about TLS, and that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub rest: String,
    pub mode: Mode,
}

fn broken(text: String) -> DbError {
    DbError {
        kind: DbKind::Broken,
        source: text.into(),
    }
}

/// Takes `sslmode` and `sslrootcert` out of a connection string: the client library knows only some of their values.
///
/// # Errors
/// A mode that is not one of the table above.
pub(super) fn split(text: &str) -> Result<Split, DbError> {
    let mut taken = Taken::default();
    let rest = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        taken.out_of_url(text)
    } else {
        taken.out_of_pairs(text)
    };
    let roots = || match taken.roots.clone() {
        Some(file) => Ok(PathBuf::from(file)),
        None => std::env::home_dir()
            .map(|home| home.join(DEFAULT_ROOTS))
            .ok_or_else(|| {
                broken(
                    "sslmode=verify-full: no home folder; give sslrootcert=FILE with root certificates (PEM)"
                        .into(),
                )
            }),
    };
    let mode = match taken.mode.as_deref() {
        None | Some("disable") => Mode::Plain,
        Some("require") => Mode::Encrypted,
        Some("verify-full") => Mode::Verified(roots()?),
        Some(other) => {
            return Err(broken(format!(
                "connection string: sslmode `{}`; valid are disable, require and verify-full",
                other.escape_debug()
            )));
        }
    };
    Ok(Split { rest, mode })
}

#[derive(Default)]
struct Taken {
    mode: Option<String>,
    roots: Option<String>,
}

impl Taken {
    /// Whether this is about TLS, and then noted.
    fn take(&mut self, key: &str, value: &str) -> bool {
        let place = match key {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.roots,
            _ => return false,
        };
        *place = Some(value.to_owned());
        true
    }

    /// Of `postgresql://...?key=value&...`.
    fn out_of_url(&mut self, url: &str) -> String {
        let Some((before, query)) = url.split_once('?') else {
            return url.to_owned();
        };
        let kept = query.split('&').filter(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            !self.take(key, &percent_decoded(value))
        });
        let kept: Vec<&str> = kept.collect();
        if kept.is_empty() {
            return before.to_owned();
        }
        format!("{before}?{}", kept.join("&"))
    }

    /// Of `key=value key='a value' ...`. What is not of that form is left for the library to refuse.
    fn out_of_pairs(&mut self, text: &str) -> String {
        let mut kept = String::new();
        let mut left = text;
        while !left.trim_start().is_empty() {
            let begin = left.trim_start();
            let Some((key, after)) = begin.split_once('=') else {
                kept.push_str(begin);
                break;
            };
            let value_text = after.trim_start();
            let (value, len) = value_of(value_text);
            let end = begin.len() - value_text.len() + len;
            let (pair, next) = begin.split_at_checked(end).unwrap_or((begin, ""));
            if !self.take(key.trim_end(), &value) {
                kept.push_str(pair);
                kept.push(' ');
            }
            left = next;
        }
        kept
    }
}

/// The value at the beginning of `text`, and how many bytes it takes there: to a blank, or in single quotes; a backslash
/// makes the next character plain.
fn value_of(text: &str) -> (String, usize) {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, plain)| plain)),
            '\'' if quoted => return (value, at + 1),
            c if !quoted && c.is_whitespace() => return (value, at),
            c => value.push(c),
        }
    }
    (value, text.len())
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let Some((first, rest)) = left.split_first() {
        let hex = rest.get(..2).filter(|_| *first == b'%');
        let byte = hex.and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        left = rest.get(byte.map_or(0, |_| 2)..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What the client library is told, and the connector if the connection is encrypted.
///
/// # Errors
/// Root certificates that cannot be read.
pub(super) fn connector(mode: &Mode) -> Result<(SslMode, Option<MakeRustlsConnect>), DbError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| broken(format!("TLS: {e}")))?;
    let config = match mode {
        Mode::Plain => return Ok((SslMode::Disable, None)),
        Mode::Encrypted => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
        Mode::Verified(file) => builder.with_root_certificates(roots(file)?).with_no_client_auth(),
    };
    Ok((SslMode::Require, Some(MakeRustlsConnect::new(config))))
}

fn roots(file: &Path) -> Result<RootCertStore, DbError> {
    let bad = |text: String| broken(format!("sslrootcert {}: {text}", file.display()));
    let certificates = CertificateDer::pem_file_iter(file).map_err(|e| bad(e.to_string()))?;
    let mut store = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|e| bad(e.to_string()))?;
        store.add(certificate).map_err(|e| bad(e.to_string()))?;
    }
    if store.is_empty() {
        return Err(bad("no certificate (PEM) in it".into()));
    }
    Ok(store)
}

/// Takes any certificate, as `sslmode=require` has it; whoever shows it must have its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, Mode) {
        let split = split(text).unwrap_or_else(|e| panic!("{text}: {}", e.source));
        (split.rest.trim().to_owned(), split.mode)
    }

    #[test]
    fn what_is_about_tls_is_taken_out() {
        let file = |f: &str| Mode::Verified(PathBuf::from(f));
        let told = |rest: &str, mode| (rest.to_owned(), mode);
        assert_eq!(parts("host=a user=b"), told("host=a user=b", Mode::Plain));
        assert_eq!(parts("sslmode=require host=a"), told("host=a", Mode::Encrypted));
        assert_eq!(
            parts(
                "host=a sslmode = 'verify-full' password='it\\'s sslmode=no' sslrootcert='/a b/c.pem' user=d"
            ),
            told("host=a password='it\\'s sslmode=no' user=d", file("/a b/c.pem"))
        );
        assert_eq!(
            parts("postgres://u:p@h/db?sslmode=verify-full&application_name=x&sslrootcert=%2Fa%20b"),
            told("postgres://u:p@h/db?application_name=x", file("/a b"))
        );
        assert_eq!(
            parts("postgresql://h/db?sslmode=disable"),
            told("postgresql://h/db", Mode::Plain)
        );
        for bad in [
            "host=a sslmode=prefer",
            "postgres://h/?sslmode=verify-ca",
            "sslmode=",
            "sslmode='",
        ] {
            assert!(
                split(bad).is_err_and(|e| e.source.to_string().contains("verify-full")),
                "{bad}"
            );
        }
        // Not of the form: the library says what is wrong with it.
        for odd in ["host", "=", "a='b", "a=\\", "%", "postgres://h/?%zz&=&sslmode"] {
            let _ = split(odd);
        }
    }

    #[test]
    fn roots_that_cannot_be_read_are_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let file = dir.path().join("roots.pem");
        let none = connector(&Mode::Verified(file.clone()));
        assert!(none.is_err_and(|e| e.source.to_string().contains("roots.pem")));
        std::fs::write(&file, "no certificate").expect("written");
        let empty = connector(&Mode::Verified(file));
        assert!(empty.is_err_and(|e| e.source.to_string().contains("no certificate")));
    }
}
