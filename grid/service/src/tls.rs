//! TLS 1.3 with a pinned key: the client accepts exactly the key whose SPKI fingerprint is in the
//! ticket. Names, dates and issuers of the certificate carry no meaning here. The handshake's
//! signature is checked, so the peer does own that key.

use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};

use crate::error::ServiceError;
use crate::identity::Identity;
use crate::pin::Pin;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// ALPN name of HTTP/1.1.
pub const ALPN_HTTP: &[u8] = b"http/1.1";

/// The service's side: its self-signed certificate, no client certificates, and the protocols that it speaks
/// (ALPN names).
pub fn server_config(identity: &Identity, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, ServiceError> {
    let failed = |e: Error| ServiceError::Crypto(format!("cannot set up TLS: {e}"));
    let (cert, key) = identity.tls_material();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(cert)],
            PrivatePkcs8KeyDer::from(key).into(),
        )
        .map_err(failed)?;
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    // No session is resumed: a ticket after the handshake would only be bytes against the stream.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The client's side for one service and protocol (ALPN name); the second value tells afterwards which pin was shown.
pub fn client_config(
    pin: Pin,
    protocol: &[u8],
) -> Result<(Arc<ClientConfig>, Arc<PinVerifier>), ServiceError> {
    let verifier = Arc::new(PinVerifier {
        pinned: pin,
        found: Mutex::new(None),
        algorithms: provider().signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| ServiceError::Crypto(format!("cannot set up TLS: {e}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok((Arc::new(config), verifier))
}

/// Accepts one key.
#[derive(Debug)]
pub struct PinVerifier {
    pinned: Pin,
    found: Mutex<Option<Pin>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinVerifier {
    /// The pin of a key that was shown and refused.
    pub fn refused(&self) -> Option<Pin> {
        *self.found.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let spki = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        let found = Pin::of_spki(&spki);
        if found == self.pinned {
            return Ok(ServerCertVerified::assertion());
        }
        *self.found.lock().unwrap_or_else(|e| e.into_inner()) = Some(found);
        Err(Error::InvalidCertificate(
            CertificateError::ApplicationVerificationFailure,
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
