//! The settings that an admin changes at run time.

use packhorse_cluster::Discipline;
use packhorse_control::record::Settings;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::Row as _;

use super::{Store, StoreError, to_json};
use crate::sessions::EndedSessions;

/// The name of the setting with the sessions that were signed out.
const ENDED_SESSIONS: &str = "ended-sessions";
/// The statement that stores a setting.
const SET: &str = "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";

impl Store {
    /// Returns the stored settings.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn settings(&self) -> Result<Settings, StoreError> {
        let mut settings = Settings::default();
        for row in sqlx::query("SELECT name, value FROM settings")
            .fetch_all(&self.database)
            .await?
        {
            let value: String = row.try_get("value")?;
            match row.try_get::<String, _>("name")?.as_str() {
                "policy" => settings.policy = Some(value),
                "options" => {
                    settings.options = serde_json::from_str(&value)
                        .inspect_err(|e| {
                            tracing::warn!(
                                error = %e,
                                "the stored policy options are not valid in this version; the defaults are used"
                            );
                        })
                        .ok();
                }
                "discipline" => {
                    let unreadable = StoreError::unreadable("settings", "value");
                    let discipline = match value.parse::<Discipline>() {
                        Ok(discipline) => discipline.live().map_err(Into::into),
                        Err(e) => Err(e.into()),
                    };
                    settings.discipline = Some(discipline.map_err(unreadable)?);
                }
                // A newer version wrote this setting.
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Stores the given settings, all or none, and leaves the others unchanged.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn update_settings(&self, settings: &Settings) -> Result<(), StoreError> {
        let options = settings.options.as_ref().map(|options| {
            serde_json::to_string(options).expect("words and truth values are JSON")
        });
        let mut transaction = self.begin().await?;
        let values = [
            ("options", options),
            ("policy", settings.policy.clone()),
            ("discipline", settings.discipline.map(|d| d.to_string())),
        ];
        for (name, value) in values {
            let Some(value) = value else { continue };
            sqlx::query(SET)
                .bind(name)
                .bind(value)
                .execute(&mut transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the sessions that were signed out.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn ended_sessions(&self) -> Result<EndedSessions, StoreError> {
        self.setting(ENDED_SESSIONS).await
    }

    /// Stores the sessions that were signed out.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn set_ended_sessions(&self, ended: &EndedSessions) -> Result<(), StoreError> {
        self.set_setting(ENDED_SESSIONS, ended).await
    }

    /// Returns the setting of this name, whose value is JSON; the default without one.
    pub(super) async fn setting<T>(&self, name: &str) -> Result<T, StoreError>
    where
        T: Default + DeserializeOwned,
    {
        let row = sqlx::query("SELECT value FROM settings WHERE name = $1")
            .bind(name)
            .fetch_optional(&self.database)
            .await?;
        let read = |row| super::json(&row, "settings", "value");
        row.map_or_else(|| Ok(T::default()), read)
    }

    /// Stores a setting as JSON.
    pub(super) async fn set_setting(
        &self,
        name: &str,
        value: &(impl Serialize + Sync),
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(SET)
            .bind(name)
            .bind(to_json(value))
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}
