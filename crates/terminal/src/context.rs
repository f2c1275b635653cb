//! The options that all commands share: the gateway's addresses, the admin token, and the form of results.

use std::{env, fs, path::PathBuf};

use anyhow::Context as _;
use clap::Command;
use packhorse_client::{
    AdminClient, Authorities, BaseUrl, CallError, ClientError, InferenceClient,
};

/// The options of every command.
#[derive(clap::Args, Clone, Debug)]
pub struct GlobalArgs {
    /// Address of the gateway's inference listener
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "PACKHORSE_URL",
        default_value = "http://127.0.0.1:8080",
        help_heading = "Gateway"
    )]
    url: BaseUrl,
    /// Address of the gateway's admin listener
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "PACKHORSE_ADMIN_URL",
        default_value = "http://127.0.0.1:8081",
        help_heading = "Gateway"
    )]
    admin_url: BaseUrl,
    /// File with the admin token [default: ~/.local/share/packhorse/admin-token, or else that of the demo if this program lies in
    /// a source checkout]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "PACKHORSE_TOKEN_FILE",
        help_heading = "Gateway"
    )]
    token_file: Option<PathBuf>,
    /// File with the API key for inference requests, where the gateway requires one
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "PACKHORSE_KEY_FILE",
        help_heading = "Gateway"
    )]
    key_file: Option<PathBuf>,
    /// File with the certificates of the authorities that sign the gateway's, for https addresses [default: the authorities that this
    /// machine trusts]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "PACKHORSE_CA_FILE",
        help_heading = "Gateway"
    )]
    ca_file: Option<PathBuf>,
    /// Print results as JSON, for programs
    #[arg(long, global = true)]
    json: bool,
}

/// The options of every command, with the clients that follow from them.
pub struct Context {
    args: GlobalArgs,
    command_line: Command,
}

/// The error of a token file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the admin token in {}", .path.display())]
struct TokenFileError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// The token file of `cargo xtask demo`, in the source checkout.
const DEMO_TOKEN_FILE: &str = ".packhorse/demo/gateway/admin-token";

impl Context {
    /// Returns the context of a run with these options; `command_line` is what this program understands.
    pub fn new(args: GlobalArgs, command_line: Command) -> Self {
        Self { args, command_line }
    }

    /// Returns a description of all commands with their flags.
    pub fn command_line(&self) -> Command {
        self.command_line.clone()
    }

    /// Returns true if results are printed as JSON.
    pub fn json(&self) -> bool {
        self.args.json
    }

    /// Returns the inference listener's address.
    pub fn url(&self) -> &BaseUrl {
        &self.args.url
    }

    /// Returns the admin listener's address.
    pub fn admin_url(&self) -> &BaseUrl {
        &self.args.admin_url
    }

    /// Returns a client of the inference listener, which sends the key if there is one.
    pub fn inference(&self) -> anyhow::Result<InferenceClient> {
        let url = self.args.url.clone();
        let Some(path) = &self.args.key_file else {
            return InferenceClient::new(url, &self.authorities()).context("--ca-file");
        };
        let shown = path.display();
        let key =
            fs::read_to_string(path).with_context(|| format!("--key-file: cannot read {shown}"))?;
        let client = InferenceClient::with_key(url, &key, &self.authorities());
        named(client, || format!("--key-file: {shown} contains no key"))
    }

    /// Returns a client of the admin listener that sends the token.
    pub fn admin(&self) -> anyhow::Result<AdminClient> {
        let path = self.token_file()?;
        let token = fs::read_to_string(&path).map_err(|source| TokenFileError {
            path: path.clone(),
            source,
        })?;
        let client = AdminClient::new(self.args.admin_url.clone(), &token, &self.authorities());
        named(client, || {
            format!("{} does not contain an admin token", path.display())
        })
    }

    /// Returns the authorities that the user trusts.
    pub fn authorities(&self) -> Authorities {
        Authorities::from_flag(self.args.ca_file.as_deref())
    }

    /// Returns the file that the user names, else that of a gateway with default settings, else the demo's.
    fn token_file(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.args.token_file {
            return Ok(path.clone());
        }
        let default = default_state_dir().map(|dir| dir.join("admin-token"));
        match default {
            Some(default) if default.exists() => Ok(default),
            default => demo_token_file().or(default).context(
                "there is no home directory with an admin token: name the token file with --token-file",
            ),
        }
    }

    /// Returns advice on an error, for the errors that have a known remedy.
    pub fn hint(&self, error: &anyhow::Error) -> Option<String> {
        if error.downcast_ref::<TokenFileError>().is_some() {
            return Some(
                "the gateway writes its token into its state directory when it first starts; name the file with \
                 --token-file or PACKHORSE_TOKEN_FILE"
                    .to_owned(),
            );
        }
        let call = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<CallError>())?;
        match call {
            CallError::Connect { url, .. } if *url == self.args.admin_url => Some(
                "is the gateway running? Set the address of its admin listener with --admin-url or PACKHORSE_ADMIN_URL"
                    .to_owned(),
            ),
            CallError::Connect { .. } => Some(
                "is the gateway running? Set the address of its inference listener with --url or PACKHORSE_URL"
                    .to_owned(),
            ),
            CallError::Refused { status, .. } if matches!(status.as_u16(), 401 | 403) => {
                Some(self.token_hint())
            }
            CallError::Refused {
                retry_after_s: Some(seconds),
                ..
            } => Some(format!("the gateway asks clients to retry after {seconds} s")),
            CallError::InvalidResponse { url, .. } => {
                Some(format!("is {url} a Packhorse gateway of this version?"))
            }
            _ => None,
        }
    }

    fn token_hint(&self) -> String {
        let used = self.token_file().ok();
        let shown = used
            .as_ref()
            .map_or_else(|| "the file".into(), |path| path.to_string_lossy());
        let hint = format!(
            "the gateway does not accept the token in {shown}; name another file with --token-file or PACKHORSE_TOKEN_FILE"
        );
        match demo_token_file() {
            Some(demo) if used.as_ref() != Some(&demo) => {
                format!("{hint} (the demo's is {})", demo.display())
            }
            _ => hint,
        }
    }
}

/// Adds the file to an error about its token.
fn named<T>(client: Result<T, ClientError>, file: impl Fn() -> String) -> anyhow::Result<T> {
    client.map_err(|e| match e {
        ClientError::Token(e) => anyhow::Error::new(e).context(file()),
        ClientError::Authorities(e) => anyhow::Error::new(e).context("--ca-file"),
    })
}

/// Returns the state folder of a gateway with default settings; `None` without a home folder.
pub fn default_state_dir() -> Option<PathBuf> {
    Some(data_home()?.join("packhorse"))
}

/// Returns the user's data folder; `None` without a home folder.
pub fn data_home() -> Option<PathBuf> {
    let data_home = env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    data_home.or_else(|| Some(env::home_dir()?.join(".local/share")))
}

/// Returns the demo's token file, if this program lies in a source checkout that has one.
fn demo_token_file() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let folders = program.ancestors().skip(1);
    let mut files = folders.map(|folder| folder.join(DEMO_TOKEN_FILE));
    files.find(|file| file.is_file())
}
