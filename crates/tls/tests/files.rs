//! PEM files that are right, wrong, and replaced.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use packhorse_tls::{
    Authorities, ClientFiles, ClientTls, Identity, Refresh, Reloaded, ServerFiles, ServerTls,
    TlsFileProblem,
};
use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};
use tempfile::TempDir;

const ALPN: &[&[u8]] = &[b"http/1.1"];

/// A private authority with a folder for its files.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate for this name to these files.
    fn issue(&self, name: &str, identity: &Identity) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(&identity.certificate, certificate.pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
    }

    fn identity(&self, name: &str) -> Identity {
        let identity = files(self.folder.path(), name);
        self.issue(name, &identity);
        identity
    }
}

fn files(folder: &Path, name: &str) -> Identity {
    Identity {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    }
}

fn server(identity: &Identity, client_authorities: Option<PathBuf>) -> Reloaded<ServerTls> {
    let files = ServerFiles {
        identity: identity.clone(),
        client_authorities,
    };
    ServerTls::open(files, ALPN).unwrap()
}

fn problem(identity: Identity) -> (PathBuf, TlsFileProblem) {
    let files = ServerFiles {
        identity,
        client_authorities: None,
    };
    let error = ServerTls::open(files, ALPN).unwrap_err();
    (error.path, error.problem)
}

/// Lets client and server shake hands in memory.
fn shake_hands(
    client: Arc<rustls::ClientConfig>,
    server: &ServerTls,
    name: &str,
) -> Result<ServerConnection, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client, name)?;
    let mut server = ServerConnection::new(Arc::clone(&server.config))?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    Ok(server)
}

#[test]
fn a_client_accepts_the_certificate_of_its_authority_and_names_the_file_for_others() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = server(&authority.identity("localhost"), None).get();
    let trust = Authorities::File(authority.path("ca.pem"));
    let config = Arc::new(trust.client_config("https").unwrap());
    let connection = shake_hands(Arc::clone(&config), &server, "localhost").unwrap();
    assert_eq!(
        connection.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );

    let refused = shake_hands(config, &server, "elsewhere").unwrap_err();
    let refusal = trust.refusal(&refused).unwrap().to_string();
    assert!(refusal.contains("localhost"), "{refusal}");

    let trust = Authorities::File(other.path("ca.pem"));
    let config = Arc::new(trust.client_config("https").unwrap());
    let refused = shake_hands(config, &server, "localhost").unwrap_err();
    let wrapped = std::io::Error::other(refused);
    let refusal = trust.refusal(&wrapped).unwrap().to_string();
    let file = other.path("ca.pem").display().to_string();
    assert!(refusal.contains(&file), "{refusal}");
}

#[test]
fn a_server_of_mutual_tls_wants_a_certificate_of_its_authority() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = authority.path("ca.pem");
    let server = server(&authority.identity("localhost"), Some(ca.clone())).get();
    let attempt = |identity| {
        let files = ClientFiles {
            authorities: ca.clone(),
            identity,
        };
        let client = ClientTls::open(files, ALPN).unwrap().get();
        shake_hands(Arc::clone(&client.config), &server, "localhost")
    };
    attempt(Some(authority.identity("gateway"))).unwrap();
    attempt(Some(other.identity("gateway"))).unwrap_err();
    attempt(None).unwrap_err();
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_problem() {
    let authority = Authority::new();
    let (first, second) = (authority.identity("first"), authority.identity("second"));
    let mixed = |certificate: &PathBuf, key: &PathBuf| Identity {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let nowhere = authority.path("nowhere");
    let (path, found) = problem(mixed(&nowhere, &first.key));
    assert!(path == nowhere && matches!(found, TlsFileProblem::Unreadable(_)));
    let (path, found) = problem(mixed(&first.key, &first.key));
    assert_eq!(
        (path, found),
        (first.key.clone(), TlsFileProblem::NoCertificate)
    );
    let (path, found) = problem(mixed(&first.certificate, &second.certificate));
    assert_eq!(
        (path, found),
        (second.certificate.clone(), TlsFileProblem::NoKey)
    );
    let (path, found) = problem(mixed(&first.certificate, &second.key));
    assert_eq!(
        (path, found),
        (
            second.key,
            TlsFileProblem::OtherKey(first.certificate.clone())
        )
    );
    let huge = authority.path("huge");
    fs::write(&huge, vec![b'x'; (1 << 20) + 1]).unwrap();
    let (path, found) = problem(mixed(&huge, &first.key));
    assert_eq!((path, found), (huge, TlsFileProblem::TooLarge(1 << 20)));
    let malformed = authority.path("malformed");
    let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&malformed, text).unwrap();
    let (path, found) = problem(mixed(&malformed, &first.key));
    assert!(path == malformed && matches!(found, TlsFileProblem::Certificate(_)));
}

#[test]
fn a_changed_certificate_is_used_and_a_broken_one_is_reported_once() {
    let authority = Authority::new();
    let identity = authority.identity("localhost");
    let tls = server(&identity, None);
    let first = tls.get();
    assert_eq!(tls.refresh(), Refresh::Unchanged);
    assert!(Arc::ptr_eq(&first, &tls.get()));

    let good = fs::read(&identity.certificate).unwrap();
    fs::write(&identity.certificate, "half a certi").unwrap();
    assert!(matches!(tls.refresh(), Refresh::Broken(e) if e.path == identity.certificate));
    assert_eq!(tls.refresh(), Refresh::Unchanged);
    assert!(tls.broken().is_some());
    assert!(Arc::ptr_eq(&first, &tls.get()));

    fs::write(&identity.certificate, good).unwrap();
    assert_eq!(tls.refresh(), Refresh::Unchanged);
    assert_eq!(tls.broken(), None);

    authority.issue("localhost", &identity);
    assert_eq!(tls.refresh(), Refresh::Replaced);
    assert!(!Arc::ptr_eq(&first, &tls.get()));
}

#[test]
fn a_symbolic_link_to_other_files_is_a_change() {
    let authority = Authority::new();
    let link = authority.path("current");
    for version in ["v1", "v2"] {
        let folder = authority.path(version);
        fs::create_dir(&folder).unwrap();
        authority.issue("localhost", &files(&folder, "tls"));
    }
    symlink("v1", &link).unwrap();
    let tls = server(&files(&link, "tls"), None);
    let next = authority.path("next");
    symlink("v2", &next).unwrap();
    fs::rename(&next, &link).unwrap();
    assert_eq!(tls.refresh(), Refresh::Replaced);
}

#[test]
fn the_expiry_is_that_of_the_certificate() {
    let authority = Authority::new();
    let identity = files(authority.folder.path(), "localhost");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2031, 4, 5);
    let certificate = params.signed_by(&key, &authority.issuer).unwrap();
    fs::write(&identity.certificate, certificate.pem()).unwrap();
    fs::write(&identity.key, key.serialize_pem()).unwrap();
    assert_eq!(server(&identity, None).get().expires_s, 1_933_113_600);
}

#[test]
fn a_client_of_http_reads_nothing() {
    let nowhere = Authorities::File(PathBuf::from("/nowhere"));
    nowhere.client_config("http").unwrap();
    let error = nowhere.client_config("https").unwrap_err().to_string();
    assert!(error.starts_with("/nowhere: "), "{error}");
}
