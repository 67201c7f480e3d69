//! TLS to PostgreSQL: a real server with a certificate that this test has signed.

use super::server::Server;
use kuroshio_catalog::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

fn write(path: &Path, text: &str) {
    use std::io::Write;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.expect("made").write_all(text.as_bytes()).expect("written");
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let lines: Vec<_> = lines.collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

/// An authority of this name: its certificate and what signs.
fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let signed = params.self_signed(&key).expect("signed");
    (pem("CERTIFICATE", signed.der()), Issuer::new(params, key))
}

fn connect(url: &str) -> Result<Postgres, String> {
    Postgres::connect(url, Options::default()).map_err(|e| e.to_string())
}

#[test]
fn the_connection_is_encrypted_and_its_server_known() {
    let folder = tempfile::tempdir().expect("folder");
    let (ours, signer) = authority("ours");
    let (others, _) = authority("others");
    let (ours_file, others_file) = (
        folder.path().join("our root.pem"),
        folder.path().join("others.pem"),
    );
    write(&ours_file, &ours);
    write(&others_file, &others);
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("address").port();
    drop(free);
    let server = Server::start_with("off", port, |dir| {
        let key = KeyPair::generate().expect("key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("name");
        let signed = params.signed_by(&key, &signer).expect("signed");
        write(&dir.join("tls.crt"), &pem("CERTIFICATE", signed.der()));
        write(&dir.join("tls.key"), &pem("PRIVATE KEY", &key.serialize_der()));
        let dir = dir.display();
        format!(
            "-c listen_addresses=127.0.0.1 -c ssl=on -c ssl_cert_file={dir}/tls.crt -c ssl_key_file={dir}/tls.key"
        )
    });
    server.database("tls");
    let url = |host: &str, more: &str| format!("host={host} port={port} user=grid dbname=tls {more}");
    let full = |file: &Path| format!("sslmode=verify-full sslrootcert='{}'", file.display());

    let encrypted = |wanted: bool| {
        let mut client = postgres::Client::connect(&server.url("tls"), postgres::NoTls).expect("connected");
        let sql = "SELECT bool_and(s.ssl), bool_or(s.ssl), count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                   WHERE a.application_name = 'kuroshio-catalog'";
        let row = client.query_one(sql, &[]).expect("asked");
        let (all, any, count) = (row.get::<_, bool>(0), row.get::<_, bool>(1), row.get::<_, i64>(2));
        assert!(count > 0 && all == wanted && any == wanted, "{count} {all} {any}");
    };
    let works = |url: &str| {
        let catalog = connect(url).unwrap_or_else(|e| panic!("{url}: {e}"));
        let root = Stat {
            place: Place::path("/"),
            follow: false,
        };
        assert_eq!(
            catalog.call(&Caller::admin(), root).expect("answered").ino,
            Ino::ROOT
        );
        catalog
    };
    let plain = works(&url("localhost", "sslmode=disable"));
    encrypted(false);
    drop(plain);
    // Whose certificate it is does not matter here.
    let require = works(&url("127.0.0.1", "sslmode=require"));
    encrypted(true);
    drop(require);
    let verified = works(&url("localhost", &full(&ours_file)));
    encrypted(true);
    drop(verified);
    let file = ours_file.display().to_string().replace(' ', "%20");
    drop(works(&format!(
        "postgresql://grid@localhost:{port}/tls?sslmode=verify-full&sslrootcert={file}"
    )));

    let refused = |url: &str, word: &str| {
        let why = connect(url).err().unwrap_or_else(|| panic!("{url} is taken"));
        assert!(why.to_lowercase().contains(word), "{why}");
    };
    refused(&url("localhost", &full(&others_file)), "certificate");
    refused(&url("127.0.0.1", &full(&ours_file)), "certificate");
    refused(&url("localhost", "sslmode=prefer"), "verify-full");
    // A socket of the machine has no TLS: it is refused, not left out.
    refused(&format!("{} sslmode=require", server.url("tls")), "tls");
}
