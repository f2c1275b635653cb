//! The address of a listener of the gateway.

use std::{fmt, str::FromStr};

use reqwest::Url;

/// The address of a listener: `http://HOST:PORT` or `https://HOST:PORT`, followed by a path if a proxy in front of the gateway requires one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(Url);

/// The reason why a text is not a [`BaseUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseUrlError {
    /// The text is not a URL.
    #[error("{given:?} is not a URL: expected http://HOST:PORT or https://HOST:PORT")]
    Malformed {
        /// The given text, cut after 200 characters.
        given: String,
    },
    /// The URL has another scheme than `http` or `https`, or parts other than host, port and path.
    #[error(
        "{given:?} is not the address of an HTTP listener: expected http://HOST:PORT or https://HOST:PORT, with at most a path after it"
    )]
    NotHttp {
        /// The given text, cut after 200 characters.
        given: String,
    },
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let given = || text.chars().take(200).collect();
        let url = Url::parse(text).map_err(|_| BaseUrlError::Malformed { given: given() })?;
        let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if matches!(url.scheme(), "http" | "https") && url.has_host() && bare {
            Ok(Self(url))
        } else {
            Err(BaseUrlError::NotHttp { given: given() })
        }
    }
}

impl BaseUrl {
    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &str {
        self.0.scheme()
    }

    /// Returns the host, an IPv6 address without its brackets, and the port.
    pub(crate) fn host_and_port(&self) -> (String, u16) {
        let host = self.0.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // A URL of these schemes has a default port.
        (
            host.to_owned(),
            self.0.port_or_known_default().unwrap_or(80),
        )
    }

    /// Returns the URL of a route below this address. Segments are percent-encoded.
    pub(crate) fn route<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.0.clone();
        url.path_segments_mut()
            .expect("a URL with a host has a path")
            .pop_if_empty()
            .extend(segments);
        url
    }
}

/// Prints the address without a slash at its end.
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
    fn texts_that_are_not_http_addresses_are_refused() {
        for bad in [
            "",
            "127.0.0.1:8080",
            "localhost:8080",
            "ftp://h",
            "unix:/x",
            "http://h?x=1",
            "http://h#x",
            "http://u@h",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad:?} was accepted");
        }
    }
}
