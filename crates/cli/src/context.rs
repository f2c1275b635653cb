//! What all commands share: where the gateway is, with which token, and in which form results are wanted.

use std::{
    env, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use packhorse_client::{AdminClient, BaseUrl, CallError, InferenceClient};

/// The options of every command.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// The gateway's inference listener
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "PACKHORSE_URL",
        default_value = "http://127.0.0.1:8080",
        help_heading = "Gateway"
    )]
    url: BaseUrl,
    /// The gateway's admin listener
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "PACKHORSE_ADMIN_URL",
        default_value = "http://127.0.0.1:8081",
        help_heading = "Gateway"
    )]
    admin_url: BaseUrl,
    /// File with the admin token [default: ~/.local/share/packhorse/admin-token]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "PACKHORSE_TOKEN_FILE",
        help_heading = "Gateway"
    )]
    token_file: Option<PathBuf>,
    /// Print results as JSON, for programs
    #[arg(long, global = true)]
    json: bool,
}

/// The options of every command, ready to be used.
pub(crate) struct Context {
    args: GlobalArgs,
}

/// The token cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the admin token in {}", .path.display())]
struct TokenFileError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl Context {
    pub(crate) fn new(args: GlobalArgs) -> Self {
        Self { args }
    }

    /// Whether results are for programs.
    pub(crate) fn json(&self) -> bool {
        self.args.json
    }

    /// The inference listener's address.
    pub(crate) fn url(&self) -> &BaseUrl {
        &self.args.url
    }

    /// The admin listener's address.
    pub(crate) fn admin_url(&self) -> &BaseUrl {
        &self.args.admin_url
    }

    /// A client of the inference listener.
    pub(crate) fn inference(&self) -> InferenceClient {
        InferenceClient::new(self.args.url.clone())
    }

    /// A client of the admin listener, with the token.
    pub(crate) fn admin(&self) -> anyhow::Result<AdminClient> {
        let path = self.token_file()?;
        let token = fs::read_to_string(&path).map_err(|source| TokenFileError {
            path: path.clone(),
            source,
        })?;
        AdminClient::new(self.args.admin_url.clone(), &token)
            .with_context(|| format!("{} holds no token", path.display()))
    }

    fn token_file(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.args.token_file {
            return Ok(path.clone());
        }
        let data_home = env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let data_home = data_home.or_else(|| Some(env::home_dir()?.join(".local/share")));
        let data_home = data_home.context(
            "there is no home directory to look for the admin token in: give --token-file",
        )?;
        Ok(data_home.join("packhorse").join("admin-token"))
    }

    /// What to do about an error, where we know.
    pub(crate) fn hint(&self, error: &anyhow::Error) -> Option<String> {
        if error.downcast_ref::<TokenFileError>().is_some() {
            return Some(
                "the gateway writes it into its state directory when it first starts; name it with --token-file or \
                 PACKHORSE_TOKEN_FILE"
                    .to_owned(),
            );
        }
        let call = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<CallError>())?;
        match call {
            CallError::Connect { url, .. } if *url == self.args.admin_url => Some(
                "is the gateway running? Name its admin listener with --admin-url or PACKHORSE_ADMIN_URL".to_owned(),
            ),
            CallError::Connect { .. } => Some(
                "is the gateway running? Name its inference listener with --url or PACKHORSE_URL".to_owned(),
            ),
            CallError::Refused { status, .. } if matches!(status.as_u16(), 401 | 403) => {
                let file = self.token_file().ok();
                let file = file.as_deref().map_or("the file", |path| path.to_str().unwrap_or("the file"));
                Some(format!(
                    "the gateway does not take the token in {file}; name another with --token-file or PACKHORSE_TOKEN_FILE"
                ))
            }
            CallError::Refused { retry_after_s: Some(seconds), .. } => {
                Some(format!("the gateway asks to be tried again in {seconds} s"))
            }
            CallError::Answer { .. } => Some("is that a Packhorse gateway of this version?".to_owned()),
            _ => None,
        }
    }
}

/// Reads a file that the user named.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_within(FILE_LIMIT, path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a text file that the user named.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    read_text_within_limit(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The most bytes of a file.
const FILE_LIMIT: u64 = 1 << 30;
/// The most bytes of a text.
const TEXT_LIMIT: u64 = 256 << 20;

/// Reads a text file.
pub(crate) fn read_text_within_limit(path: &Path) -> io::Result<String> {
    let bytes = read_within(TEXT_LIMIT, path)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text: not valid UTF-8"))
}

fn read_within(limit: u64, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let problem = format!("it is over the limit of {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// Writes a file that the user named.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
