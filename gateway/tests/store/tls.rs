//! TLS to PostgreSQL, as the URL asks for it.

use std::{fs, os::unix::fs::PermissionsExt as _};

use packhorse_gateway::store::{OpenStoreError, Store};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::postgres_server::Server;

#[tokio::test]
async fn the_servers_certificate_is_verified_if_the_url_says_so() {
    let authority = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, other) = (authority(), authority());
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let server = Server::start_with(|server| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &trusted).unwrap();
        let [certificate_file, key_file] = [
            ("server.pem", certificate.pem()),
            ("server.key", key.serialize_pem()),
        ]
        .map(|(name, content)| {
            let path = server.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        });
        [
            "ssl=on".to_owned(),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("ssl_cert_file={certificate_file}"),
            format!("ssl_key_file={key_file}"),
        ]
        .into_iter()
        .flat_map(|setting| ["-c".to_owned(), setting])
        .collect()
    });
    let Some(_server) = server else { return };
    let [right, wrong] = [("right.pem", trusted.pem()), ("wrong.pem", other.pem())]
        .map(|(name, pem)| file(name, &pem));
    let url = |mode: &str| format!("postgres://packhorse@localhost:{port}/postgres?sslmode={mode}");
    let verified = format!("{}&sslrootcert={right}", url("verify-full"));

    let store = Store::open_at(&verified.parse().unwrap()).await.unwrap();
    let mut admin = AnyConnection::connect(&url("require")).await.unwrap();
    let sessions = "SELECT COUNT(*) FILTER (WHERE s.ssl), COUNT(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'client backend'";
    let row = sqlx::query(sessions).fetch_one(&mut admin).await.unwrap();
    let (with_tls, all): (i64, i64) = (row.get(0), row.get(1));
    assert!(all >= 3, "the lock's, one of the pool, and this one: {all}");
    assert_eq!(with_tls, all);
    store.close().await;

    // Another authority; the machine's own; a name that is not in the certificate.
    for refused in [
        format!("{}&sslrootcert={wrong}", url("verify-full")),
        url("verify-full"),
        format!(
            "{}&sslrootcert={right}",
            url("verify-full").replace("localhost", "127.0.0.1")
        ),
    ] {
        let error = Store::open_at(&refused.parse().unwrap()).await.unwrap_err();
        let OpenStoreError::Server { source, .. } = &error else {
            panic!("{error:?}")
        };
        let text = source.to_string();
        assert!(text.contains("certificate"), "{refused}: {text}");
    }
}

/// Returns a port that is free now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
