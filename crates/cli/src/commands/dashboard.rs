//! `packhorse dashboard`: opens the dashboard in the browser, signed in.

use packhorse_terminal::{context::Context, output};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse dashboard             Open the dashboard, signed in with the token of this command
  packhorse dashboard --print     Only print its address, for a browser elsewhere

The address contains a code that is valid once, for a minute. The session lasts 12 hours.")]
pub(crate) struct DashboardArgs {
    /// Print the address and open no browser
    #[arg(long)]
    print: bool,
}

impl DashboardArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let made = context.admin()?.session_code().await?;
        let base = context.admin_url().to_string();
        let address = format!(
            "{}/#/sign-in?code={}",
            base.trim_end_matches('/'),
            made.code
        );
        if context.json() {
            let expires_in_s = made.expires_in_s;
            return output::print_json(&serde_json::json!({
                "url": address, "expires_in_s": expires_in_s,
            }));
        }
        if self.print {
            return Ok(output::print_line(address)?);
        }
        match open::that_detached(&address) {
            Ok(()) => Ok(output::print_line(format!("opened {base}"))?),
            Err(e) => {
                output::note(format_args!(
                    "no browser was opened: {e}; open this address within a minute:"
                ));
                Ok(output::print_line(address)?)
            }
        }
    }
}
