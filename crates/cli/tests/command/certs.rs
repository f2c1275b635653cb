//! `packhorse certs`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use packhorse_stand_in::Gateway;

#[tokio::test]
async fn an_authority_issues_certificates_and_overwrites_nothing() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let made = gateway.run_bare(&["certs", "init", "pki/certs"]);
    assert_eq!(
        made.text(),
        "certificate: pki/certs/ca.pem\nkey: pki/certs/ca.key\n"
    );
    let issue = [
        "certs",
        "issue",
        "pki/certs",
        "gw.example.com",
        "--ip",
        "10.0.0.1",
    ];
    let issued = gateway.run_bare(&[&issue[..], &["--ip", "::1", "--json"]].concat());
    assert_eq!(issued.json()["key"], "pki/certs/gw.example.com.key");
    let permissions = |name: &str| {
        let metadata = fs::metadata(gateway.path(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(permissions("pki/certs"), 0o700);
    for (file, expected) in [
        ("ca.key", 0o600),
        ("ca.pem", 0o644),
        ("gw.example.com.key", 0o600),
        ("gw.example.com.pem", 0o644),
    ] {
        assert_eq!(
            permissions(&format!("pki/certs/{file}")),
            expected,
            "{file}"
        );
    }

    let before = fs::read(gateway.path("pki/certs/ca.key")).unwrap();
    for again in [&["certs", "init", "pki/certs"][..], &issue] {
        let refused = gateway.run_bare(again);
        assert!(
            refused.error().contains("exists; move it away"),
            "{refused:?}"
        );
    }
    assert_eq!(fs::read(gateway.path("pki/certs/ca.key")).unwrap(), before);
}

#[tokio::test]
async fn a_certificate_is_valid_no_longer_than_its_authority() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .run_bare(&["certs", "init", ".", "--days", "10"])
        .text();
    for (name, days) in [("n1", "365"), ("n2", "3")] {
        gateway
            .run_bare(&["certs", "issue", ".", name, "--days", days])
            .text();
    }
    let [authority, longer, shorter] = ["ca", "n1", "n2"].map(|name| {
        let pem = fs::read(gateway.path(&format!("{name}.pem"))).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        block.parse_x509().unwrap().validity().not_after
    });
    assert_eq!(longer, authority);
    assert!(shorter < authority);
}

#[tokio::test]
async fn a_certificate_in_the_way_leaves_no_key_behind() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.run_bare(&["certs", "init", "."]).text();
    gateway.file("n1.pem", "mine");
    let refused = gateway.run_bare(&["certs", "issue", ".", "n1"]);
    assert!(refused.error().contains("n1.pem exists"), "{refused:?}");
    assert!(!gateway.path("n1.key").exists());
    assert_eq!(fs::read(gateway.path("n1.pem")).unwrap(), b"mine");
}

#[tokio::test]
async fn names_that_are_no_hosts_and_folders_without_authority_are_refused() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    for name in ["../x", "ca", "", "a_b", "-a", "a..b", "x/y"] {
        let refused = gateway.run_bare(&["certs", "issue", ".", "--", name]);
        assert_eq!(refused.code, 2, "{name}: {refused:?}");
    }
    let refused = gateway.run_bare(&["certs", "issue", ".", "n1"]);
    assert!(
        refused.error().contains("cannot read ./ca.key"),
        "{refused:?}"
    );
    gateway.file("ca.key", "no key");
    gateway.file("ca.pem", "no certificate");
    let refused = gateway.run_bare(&["certs", "issue", ".", "n1"]);
    assert!(
        refused.error().contains("./ca.key is not a private key"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn only_a_gateways_certificate_connects_to_workers() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.run_bare(&["certs", "init", "."]).text();
    for (flags, connects) in [(&[][..], false), (&["--gateway"], true)] {
        let name = if connects { "gw" } else { "rack1" };
        let issue = ["certs", "issue", ".", name];
        gateway.run_bare(&[&issue[..], flags].concat()).text();
        let pem = fs::read(gateway.path(&format!("{name}.pem"))).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        let certificate = block.parse_x509().unwrap();
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth);
        assert_eq!(usage.client_auth, connects, "{name}");
    }
}
