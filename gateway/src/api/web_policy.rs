//! The check of the host that a request names, and of the web page that sends it.
//!
//! A browser on a machine that reaches a listener sends requests there for any page that it shows. A page of another site may send what needs no
//! credential, although it does not see the answer; and it sees the answers, too, once its own name stands for the listener's address ("DNS
//! rebinding"). The first is told by `Sec-Fetch-Site` (W3C, Fetch Metadata Request Headers) and `Origin`, the second by `Host`. Clients that are
//! no browsers send neither of the former, and a host that the operator knows.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, StatusCode, Uri, header},
};

/// The relation of the page that sends a request to the listener.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The way in which a browser uses the answer.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// The place in which a browser shows the answer.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// The most characters of a host that a message repeats.
const SHOWN: usize = 64;

/// The hosts that a listener answers for, and the web pages that may use it. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WebPolicy {
    /// The hosts besides `localhost` and IP addresses; `None` for all.
    hosts: Option<Arc<[AllowedHost]>>,
}

/// A host that a listener answers for: a name, `*.` and a domain, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost(String);

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WebRefusal {
    /// The listener does not answer for the host.
    #[error(
        "this listener answers for localhost, IP addresses and the hosts of --allowed-host, and not for host {0:?}"
    )]
    Host(String),
    /// A page of another origin sends the request.
    #[error("a web page of another origin may not send requests to this listener")]
    Page,
}

/// The text is no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of a host without a port, *.DOMAIN, or * for all hosts")]
pub struct InvalidHost;

impl WebPolicy {
    /// Creates the policy of a listener that answers for `localhost`, IP addresses and these hosts only.
    pub fn for_hosts(hosts: &[AllowedHost]) -> Self {
        Self {
            hosts: Some(hosts.into()),
        }
    }

    /// Returns the reason why a request is refused, if it is.
    pub(crate) fn refusal(&self, request: &Request) -> Option<WebRefusal> {
        let headers = request.headers();
        self.check_host(request.uri(), headers)
            .and_then(|()| check_page(request, headers))
            .err()
    }

    /// Checks the host of the header and that of a URI in absolute form. A client of HTTP/1.0 need not name one; browsers do.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), WebRefusal> {
        let Some(allowed) = &self.hosts else {
            return Ok(());
        };
        let named = headers.get_all(header::HOST).iter();
        let named = named.map(|host| str::from_utf8(host.as_bytes()).unwrap_or("\u{fffd}"));
        let in_uri = uri.authority().map(axum::http::uri::Authority::as_str);
        let mut refused = named.chain(in_uri).filter(|host| {
            let name = without_port(host);
            !is_local(name) && !allowed.iter().any(|allowed| allowed.matches(name))
        });
        refused.next().map_or(Ok(()), |host| {
            Err(WebRefusal::Host(host.chars().take(SHOWN).collect()))
        })
    }
}

/// Checks that no page of another origin sends the request, unless it only leads the browser here.
fn check_page(request: &Request, headers: &HeaderMap) -> Result<(), WebRefusal> {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|v| v == value);
    let is_own = match headers.get(&SEC_FETCH_SITE) {
        Some(site) => site == "same-origin" || site == "none",
        // Browsers leave it out for addresses without TLS other than loopback, and older ones always.
        None => headers
            .get(header::ORIGIN)
            .is_none_or(|origin| is_origin_of_host(origin.as_bytes(), headers)),
    };
    // The page sees nothing of what a link to here shows, and the browser sends no cookie with it.
    let is_link = request.method().is_safe()
        && is(&SEC_FETCH_MODE, "navigate")
        && is(&SEC_FETCH_DEST, "document");
    if is_own || is_link {
        Ok(())
    } else {
        Err(WebRefusal::Page)
    }
}

/// Returns true if an origin has the host and port of the request. Its scheme may be that of a proxy.
fn is_origin_of_host(origin: &[u8], headers: &HeaderMap) -> bool {
    let origin = str::from_utf8(origin).ok();
    let place = origin.and_then(|origin| Some(origin.split_once("://")?.1));
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    place
        .zip(host)
        .is_some_and(|(place, host)| place.eq_ignore_ascii_case(host))
}

/// Returns a host without its port, and an IPv6 address without its brackets.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Returns true for what no name server can be made to answer for.
fn is_local(name: &str) -> bool {
    const LOCALHOST: &str = "localhost";
    let name = name.strip_suffix('.').unwrap_or(name);
    let top = name.rsplit('.').next().unwrap_or(name);
    top.eq_ignore_ascii_case(LOCALHOST) || name.parse::<IpAddr>().is_ok()
}

impl AllowedHost {
    fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        match self.0.strip_prefix('*') {
            Some("") => true,
            Some(domain) => {
                let begin = name.len().checked_sub(domain.len());
                begin.is_some_and(|begin| {
                    begin > 0
                        && name.is_char_boundary(begin)
                        && name[begin..].eq_ignore_ascii_case(domain)
                })
            }
            None => self.0.eq_ignore_ascii_case(name),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let name = text.strip_suffix('.').filter(|name| *name != "*");
        let name = name.unwrap_or(text);
        let labels = name.strip_prefix("*.").unwrap_or(name);
        let is_label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if name == "*" || (labels.len() <= 253 && labels.split('.').all(is_label)) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidHost)
        }
    }
}

impl WebRefusal {
    /// The status of the answer.
    pub(crate) const STATUS: StatusCode = StatusCode::FORBIDDEN;
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn refusal(policy: &WebPolicy, method: &str, headers: &[(&str, &str)]) -> Option<WebRefusal> {
        let request = Request::builder().method(method).uri("/v2");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        policy.refusal(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn a_strict_listener_answers_for_localhost_addresses_and_what_the_operator_names() {
        let hosts = ["gw.example.com", "*.svc.cluster.local"].map(|host| host.parse().unwrap());
        let strict = WebPolicy::for_hosts(&hosts);
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "a.localhost:80",
            "localhost.",
            "127.0.0.1:8080",
            "10.0.0.7",
            "[::1]:8080",
            "[::1]",
            "gw.example.com",
            "GW.example.com.:443",
            "a.b.svc.cluster.local:8080",
        ] {
            assert_eq!(refusal(&strict, "GET", &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.com",
            "evil.com:8080",
            "localhost.evil.com",
            "127.0.0.1.evil.com:80",
            "xlocalhost",
            "127.1",
            "gw.example.com.evil.com",
            "svc.cluster.local",
            ".svc.cluster.local",
            "xsvc.cluster.local",
            "",
            "gateway",
            "0x7f.1",
        ] {
            let refused = refusal(&strict, "GET", &[("host", host)]);
            assert_eq!(refused, Some(WebRefusal::Host(host.to_owned())), "{host}");
            assert_eq!(
                refusal(&WebPolicy::default(), "GET", &[("host", host)]),
                None
            );
            let all = WebPolicy::for_hosts(&["*".parse().unwrap()]);
            assert_eq!(refusal(&all, "GET", &[("host", host)]), None, "{host}");
        }
        assert_eq!(refusal(&strict, "GET", &[]), None, "HTTP/1.0");
        let two = [("host", "localhost"), ("host", "evil.com")];
        assert!(refusal(&strict, "GET", &two).is_some());
        let absolute = Request::get("http://evil.com/v2").header("host", "localhost");
        assert!(
            strict
                .refusal(&absolute.body(Body::empty()).unwrap())
                .is_some()
        );
    }

    #[test]
    fn pages_of_other_origins_may_lead_here_and_do_nothing_else() {
        let policy = WebPolicy::default();
        let host = ("host", "localhost:8080");
        let site = |site| ("sec-fetch-site", site);
        let link = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        let allowed: &[(&str, &[(&str, &str)])] = &[
            ("POST", &[host]),
            (
                "POST",
                &[
                    host,
                    site("same-origin"),
                    ("origin", "https://proxy.example.com"),
                ],
            ),
            ("GET", &[host, site("none")]),
            ("POST", &[host, ("origin", "http://localhost:8080")]),
            ("POST", &[host, ("origin", "https://LOCALHOST:8080")]),
            ("GET", &[host, site("cross-site"), link[0], link[1]]),
        ];
        for (method, headers) in allowed {
            assert_eq!(
                refusal(&policy, method, headers),
                None,
                "{method} {headers:?}"
            );
        }
        let refused: &[(&str, &[(&str, &str)])] = &[
            ("GET", &[host, site("cross-site")]),
            ("POST", &[host, site("cross-site"), link[0], link[1]]),
            ("GET", &[host, site("cross-site"), frame[0], frame[1]]),
            (
                "POST",
                &[host, site("same-site"), ("origin", "http://localhost:8080")],
            ),
            ("POST", &[host, ("origin", "http://evil.com")]),
            ("POST", &[host, ("origin", "http://localhost:3000")]),
            (
                "POST",
                &[host, ("origin", "http://localhost:8080.evil.com")],
            ),
            ("POST", &[host, ("origin", "null")]),
            ("POST", &[("origin", "http://evil.com")]),
        ];
        for (method, headers) in refused {
            assert_eq!(
                refusal(&policy, method, headers),
                Some(WebRefusal::Page),
                "{method} {headers:?}"
            );
        }
    }

    #[test]
    fn an_allowed_host_is_a_name_a_domain_or_all() {
        for good in ["a", "a.b-c.d_e", "*.example.com", "*", "a."] {
            assert!(good.parse::<AllowedHost>().is_ok(), "{good}");
        }
        for bad in [
            "", ".", "a:80", "http://a", "a/b", "*a", "a.*", "**", "a..b", "a b", "*.",
        ] {
            assert_eq!(bad.parse::<AllowedHost>(), Err(InvalidHost), "{bad}");
        }
    }
}
