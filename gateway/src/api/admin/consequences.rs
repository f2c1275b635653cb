//! Changes that say what they take from models, and dry runs of them.

use packhorse_api::{ChangeAnswer, Changed, Consequences};
use packhorse_control::Command;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{api::ApiError, controller::Controller};

/// The choice between a change and its dry run.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Rehearsed {
    /// True to check the change and answer its consequences, without making it.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// Makes a change that consists of these commands, and answers it with its consequences. A dry run only answers the consequences. A change
/// whose consequences are not found in time is made all the same.
pub(super) async fn change<T>(
    controller: &Controller,
    dry_run: bool,
    commands: Vec<Command>,
    make: impl Future<Output = Result<T, ApiError>>,
) -> Result<ChangeAnswer<T>, ApiError> {
    let rehearsal = controller.rehearse(commands).await?;
    if dry_run {
        return Ok(ChangeAnswer::DryRun(rehearsal?.consequences().await.into()));
    }
    let view = make.await?;
    let consequences = match rehearsal {
        Ok(rehearsal) => rehearsal.consequences().await,
        // It was refused beside changes that are made by now.
        Err(refusal) => Consequences::unknown(&refusal),
    };
    Ok(ChangeAnswer::Changed(Changed { view, consequences }))
}

/// Makes a change as [`change`] does, and without its consequences where they are not asked for and it is no dry run.
pub(super) async fn change_as_asked<T>(
    controller: &Controller,
    dry_run: bool,
    asks_for_consequences: bool,
    commands: Vec<Command>,
    make: impl Future<Output = Result<T, ApiError>>,
) -> Result<ChangeAnswer<T>, ApiError> {
    if asks_for_consequences || dry_run {
        return change(controller, dry_run, commands, make).await;
    }
    let view = make.await?;
    let consequences = Consequences::unknown(&"they were not asked for");
    Ok(ChangeAnswer::Changed(Changed { view, consequences }))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use packhorse_cluster::NodeName;
    use packhorse_control::{CommandError, record::Settings};

    use super::*;
    use crate::{app::App, config::Options, controller::Busy};

    #[tokio::test]
    async fn a_change_is_made_and_a_dry_run_answered_while_others_take_all_previews() {
        let folder = tempfile::tempdir().unwrap();
        let flags = [
            "packhorse-gateway".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            "--admin-listen=127.0.0.1:0".to_owned(),
            format!("--state-dir={}", folder.path().display()),
        ];
        let settings = Options::try_parse_from(flags).unwrap().settings().unwrap();
        let app = App::start(settings).await.unwrap();
        let controller = app.controller();
        let taken = controller.preview_permits();
        assert!(!taken.is_empty());

        let settings = Settings {
            policy: Some("exclusive".to_owned()),
            ..Settings::default()
        };
        let commands = || vec![Command::ChangeSettings(settings.clone())];
        let carry_out = async || Ok(controller.change_policy(settings.clone()).await??);
        let busy = Consequences::unknown(&Busy);
        let dry = change(controller, true, commands(), carry_out())
            .await
            .unwrap();
        assert_eq!(dry, ChangeAnswer::DryRun(busy.clone().into()));
        assert_ne!(controller.policy().await.unwrap().policy, "exclusive");

        let unheard: NodeName = "unheard-of".parse().unwrap();
        let removal = vec![Command::RemoveNode(unheard.clone())];
        let refused = change(controller, true, removal, carry_out()).await;
        assert_eq!(refused, Err(CommandError::UnknownNode(unheard).into()));

        let made = change(controller, false, commands(), carry_out())
            .await
            .unwrap();
        let ChangeAnswer::Changed(Changed { view, consequences }) = made else {
            panic!("it was not made");
        };
        assert_eq!((&*view.policy, consequences), ("exclusive", busy));

        drop(taken);
        let known = change(controller, true, commands(), carry_out())
            .await
            .unwrap();
        assert_eq!(
            known,
            ChangeAnswer::DryRun(Consequences::known(Vec::new()).into())
        );
    }
}
