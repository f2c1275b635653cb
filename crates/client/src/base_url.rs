//! Where a listener of the gateway is.

use std::{fmt, str::FromStr};

use reqwest::Url;

/// The address of a listener: `http://HOST:PORT`, and whatever path a proxy in front of it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(Url);

/// Why a text is no [`BaseUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseUrlError {
    /// It is no URL.
    #[error("{given:?} is no URL: expected http://HOST:PORT")]
    Malformed {
        /// What was given.
        given: String,
    },
    /// It is a URL of something else than an HTTP server.
    #[error("{given:?}: expected http://HOST:PORT, and nothing after it but a path")]
    NotHttp {
        /// What was given.
        given: String,
    },
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let given = || text.chars().take(200).collect();
        let url = Url::parse(text).map_err(|_| BaseUrlError::Malformed { given: given() })?;
        let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if url.scheme() == "http" && url.has_host() && bare {
            Ok(Self(url))
        } else {
            Err(BaseUrlError::NotHttp { given: given() })
        }
    }
}

impl BaseUrl {
    /// The URL of a route below this one. Segments are percent-encoded where they must be.
    pub(crate) fn route<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.0.clone();
        url.path_segments_mut()
            .expect("a URL with a host has a path")
            .pop_if_empty()
            .extend(segments);
        url
    }
}

/// Without the slash at its end, ready to be put before a path.
impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_changes_nothing() {
        for given in ["http://h:1", "http://h:1/"] {
            let base: BaseUrl = given.parse().unwrap();
            assert_eq!(base.to_string(), "http://h:1");
            assert_eq!(
                base.route(["v2", "models"]).as_str(),
                "http://h:1/v2/models"
            );
        }
        for given in ["http://h:1/packhorse", "http://h:1/packhorse/"] {
            let base: BaseUrl = given.parse().unwrap();
            assert_eq!(
                base.route(["v1", "a b"]).as_str(),
                "http://h:1/packhorse/v1/a%20b"
            );
        }
    }

    #[test]
    fn what_is_no_http_address_is_refused() {
        for bad in [
            "",
            "127.0.0.1:8080",
            "localhost:8080",
            "https://h",
            "unix:/x",
            "http://h?x=1",
            "http://h#x",
            "http://u@h",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad:?} was accepted");
        }
    }
}
