//! The address of Grafana, to which the dashboard links.

use std::str::FromStr;

use reqwest::Url;

/// The address of a Grafana that has the boards of `deploy/grafana`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrafanaUrl(String);

/// A text that is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an http or https URL without a user, a query or a fragment, such as https://grafana.example.com"
)]
pub struct GrafanaUrlError;

impl GrafanaUrl {
    /// Returns the address, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GrafanaUrl {
    type Err = GrafanaUrlError;

    fn from_str(text: &str) -> Result<Self, GrafanaUrlError> {
        let url = Url::parse(text).map_err(|_| GrafanaUrlError)?;
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        let has_user = !url.username().is_empty() || url.password().is_some();
        if !is_web || has_user || url.query().is_some() || url.fragment().is_some() {
            return Err(GrafanaUrlError);
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_a_page_may_link_to() {
        let read = |text: &str| text.parse::<GrafanaUrl>().map(|url| url.0);
        let expected = "https://grafana.example.com/boards".to_owned();
        assert_eq!(read("https://grafana.example.com/boards/"), Ok(expected));
        assert_eq!(
            read("http://10.0.0.1:3000"),
            Ok("http://10.0.0.1:3000".to_owned())
        );
        for text in [
            "",
            "grafana",
            "javascript:alert(1)",
            "http://a:b@c",
            "http://c?d",
            "http://c#d",
            "file:///etc",
        ] {
            assert_eq!(read(text), Err(GrafanaUrlError), "{text}");
        }
    }
}
