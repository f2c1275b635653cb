//! `packhorse certs`: a private authority, and certificates for gateways, workers and clients.

use std::{
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context as _;
use packhorse_terminal::{context::Context, files, output};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

/// The name of the authority's files, without their extensions.
const AUTHORITY: &str = "ca";
/// The time by which a certificate is valid before it was made, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::hours(1);
/// The permissions of a private key.
const KEY_MODE: u32 = 0o600;
/// The permissions of a certificate.
const CERTIFICATE_MODE: u32 = 0o644;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  packhorse certs init /etc/packhorse/certs
  packhorse certs issue /etc/packhorse/certs gateway.example.com --ip 10.0.0.1 --gateway
  packhorse certs issue /etc/packhorse/certs rack1 --ip 10.0.0.2")]
pub(crate) enum CertsCommand {
    /// Make a private authority: DIR/ca.pem, which clients trust, and DIR/ca.key, which signs
    #[command(after_help = "Example:\n  packhorse certs init /etc/packhorse/certs --days 3650")]
    Init(InitArgs),
    /// Make a certificate of that authority: DIR/NAME.pem and DIR/NAME.key
    #[command(
        after_help = "Example:\n  packhorse certs issue /etc/packhorse/certs gateway.example.com --ip 10.0.0.1 --ip 127.0.0.1"
    )]
    Issue(IssueArgs),
}

#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Folder of the authority; it is made for its owner only if it is not there
    dir: PathBuf,
    /// Days for which the authority is valid
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..=36_500))]
    days: u16,
}

#[derive(clap::Args)]
pub(crate) struct IssueArgs {
    /// Folder of the authority
    dir: PathBuf,
    /// Host name of the machine whose certificate it is
    #[arg(value_parser = parse_name)]
    name: String,
    /// IP address of the machine, for those that connect to it by address, as gateways to workers; may be given more than once
    #[arg(long = "ip", value_name = "ADDRESS")]
    ips: Vec<IpAddr>,
    /// Make it for a gateway, which also connects to workers with it (--link-tls mutual): no other certificate lets a machine do that
    #[arg(long)]
    gateway: bool,
    /// Days for which the certificate is valid, at most until the authority's end
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

impl CertsCommand {
    pub(super) fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Init(args) => args.run(context),
            Self::Issue(args) => args.run(context),
        }
    }
}

impl InitArgs {
    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&self.dir);
        made.with_context(|| format!("cannot make {}", self.dir.display()))?;
        let mut params = parameters("Packhorse private CA", self.days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_pair(context, &self.dir, AUTHORITY, &certificate, &key)
    }
}

impl IssueArgs {
    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let [certificate, key] = paths(&self.dir, AUTHORITY);
        let signing_key = KeyPair::from_pem(&files::read_text(&key)?)
            .with_context(|| format!("{} is not a private key", key.display()))?;
        let pem = files::read_text(&certificate)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, signing_key)
            .with_context(|| format!("{} is not a certificate", certificate.display()))?;
        let mut params = parameters(&self.name, self.days);
        // Beyond the authority's end nobody would trust it.
        params.not_after = params.not_after.min(end_of(&pem)?);
        let name = self.name.as_str().try_into()?;
        params.subject_alt_names = vec![SanType::DnsName(name)];
        let addresses = self.ips.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if self.gateway {
            // Workers take batches from whoever has this usage.
            let usages = &mut params.extended_key_usages;
            usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        write_pair(context, &self.dir, &self.name, &certificate, &key)
    }
}

/// Returns the end of the validity of the first certificate of a PEM file.
fn end_of(pem: &str) -> anyhow::Result<OffsetDateTime> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes())?;
    Ok(block.parse_x509()?.validity().not_after.to_datetime())
}

/// Parses the name of a machine, which is also that of two files.
fn parse_name(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() > 253 || !text.split('.').all(is_label) {
        return Err("expected a host name, such as gateway.example.com".to_owned());
    }
    if text == AUTHORITY {
        return Err(format!("{AUTHORITY} is the name of the authority's files"));
    }
    Ok(text.to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid by the wall clock"
)]
fn parameters(name: &str, days: u16) -> CertificateParams {
    let now = OffsetDateTime::from(SystemTime::now());
    let mut params = CertificateParams::default();
    params.not_before = now - BACKDATED;
    params.not_after = now + Duration::days(days.into());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Returns the files of a certificate and of its key.
fn paths(dir: &Path, name: &str) -> [PathBuf; 2] {
    ["pem", "key"].map(|extension| dir.join(format!("{name}.{extension}")))
}

/// Writes a certificate and its key, and says where they are. None of them replaces a file.
fn write_pair(
    context: &Context,
    dir: &Path,
    name: &str,
    certificate: &rcgen::Certificate,
    key: &KeyPair,
) -> anyhow::Result<()> {
    let [certificate_file, key_file] = paths(dir, name);
    write_new(&key_file, KEY_MODE, &key.serialize_pem())?;
    let written = write_new(&certificate_file, CERTIFICATE_MODE, &certificate.pem());
    if written.is_err() {
        // Alone it would be of no use, and in the way of the next attempt.
        let _ = fs::remove_file(&key_file);
    }
    written?;
    if context.json() {
        return output::print_json(&serde_json::json!({
            "certificate": certificate_file,
            "key": key_file,
        }));
    }
    output::print_line(format!("certificate: {}", certificate_file.display()))?;
    Ok(output::print_line(format!("key: {}", key_file.display()))?)
}

fn write_new(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            anyhow::anyhow!(
                "{} exists; move it away to have another one made",
                path.display()
            )
        }
        _ => anyhow::Error::new(e).context(format!("cannot write {}", path.display())),
    })
}
