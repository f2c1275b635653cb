//! Sessions of browsers, and the codes that start them.
//!
//! A session is a cookie that says whose it is and until when, with a signature. It is stored nowhere: it outlives a restart of the
//! gateway, and any number of them takes no memory. Its owner is looked up at every request, so that it ends with the API key that
//! started it. The key of the signatures is derived from the admin token: with another token all sessions end.
//!
//! A code is for `packhorse dashboard`, which opens a browser: it is valid once and for a minute, and nobody learns a token from the
//! address that it stands in.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::state_dir::{SecretError, random_secret};

/// The time for which a session lasts.
pub(crate) const LIFETIME: Duration = Duration::from_hours(12);
/// The time for which a code is valid.
pub(crate) const CODE_LIFETIME: Duration = Duration::from_mins(1);
/// The most codes. Further ones make the oldest invalid.
const MAX_CODES: usize = 64;
/// The version of the cookie's format.
const VERSION: &str = "1";
/// The owner in a cookie that stands for the admin token. No key has this identity.
const ADMIN: &str = "admin";

/// Sessions and codes. Clones share them.
#[derive(Clone)]
pub(crate) struct Sessions {
    key: Arc<[u8; 32]>,
    codes: Arc<Mutex<VecDeque<Code>>>,
}

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The holder of the admin token.
    AdminToken,
    /// The holder of the API key with this identity.
    Key(String),
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// The owner.
    pub(crate) owner: Owner,
    /// Its end, as Unix time in milliseconds.
    pub(crate) expires_ms: i64,
}

struct Code {
    text: String,
    owner: Owner,
    expires_ms: i64,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Owner {
    fn as_str(&self) -> &str {
        match self {
            Self::AdminToken => ADMIN,
            Self::Key(id) => id,
        }
    }
}

impl Session {
    /// Starts a session. Times are Unix times in milliseconds.
    pub(crate) fn new(owner: Owner, now_ms: i64) -> Self {
        Self {
            owner,
            expires_ms: after(now_ms, LIFETIME),
        }
    }
}

impl Sessions {
    /// Creates the sessions of a gateway with this admin token.
    pub(crate) fn new(admin_token: &str) -> Self {
        let key = sign(admin_token.as_bytes(), "packhorse sessions");
        Self {
            key: Arc::new(key),
            codes: Arc::default(),
        }
    }

    /// Returns the value of a session's cookie.
    pub(crate) fn cookie(&self, session: &Session) -> String {
        let statement = format!(
            "{VERSION}.{}.{}",
            session.owner.as_str(),
            session.expires_ms
        );
        let signature = URL_SAFE_NO_PAD.encode(sign(self.key.as_ref(), &statement));
        format!("{statement}.{signature}")
    }

    /// Returns the session of a cookie; `None` if it is not of this gateway or has ended.
    pub(crate) fn verify(&self, cookie: &str, now_ms: i64) -> Option<Session> {
        let (statement, signature) = cookie.rsplit_once('.')?;
        let expected = URL_SAFE_NO_PAD.encode(sign(self.key.as_ref(), statement));
        let is_signed: bool = expected.as_bytes().ct_eq(signature.as_bytes()).into();
        let mut parts = statement.splitn(3, '.');
        let (version, owner, expires) = (parts.next()?, parts.next()?, parts.next()?);
        let expires_ms: i64 = expires.parse().ok()?;
        let owner = match owner {
            ADMIN => Owner::AdminToken,
            id => Owner::Key(id.to_owned()),
        };
        let is_valid = is_signed && version == VERSION && now_ms < expires_ms;
        is_valid.then_some(Session { owner, expires_ms })
    }

    /// Makes a code.
    pub(crate) fn new_code(&self, owner: Owner, now_ms: i64) -> Result<String, SecretError> {
        let text = random_secret()?;
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        if codes.len() >= MAX_CODES {
            codes.pop_front();
        }
        codes.push_back(Code {
            text: text.clone(),
            owner,
            expires_ms: after(now_ms, CODE_LIFETIME),
        });
        Ok(text)
    }

    /// Returns the owner of a code and makes it invalid; `None` if it is not valid.
    pub(crate) fn redeem(&self, code: &str, now_ms: i64) -> Option<Owner> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|known| now_ms < known.expires_ms);
        let is_it = |known: &Code| known.text.as_bytes().ct_eq(code.as_bytes()).into();
        let index = codes.iter().position(is_it)?;
        codes.remove(index).map(|code| code.owner)
    }
}

fn sign(key: &[u8], statement: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(statement.as_bytes());
    mac.finalize().into_bytes().into()
}

fn after(now_ms: i64, time: Duration) -> i64 {
    let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    now_ms.saturating_add(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;
    const HOUR: i64 = 3_600_000;

    fn session(owner: Owner) -> Session {
        Session::new(owner, NOW)
    }

    #[test]
    fn a_cookie_is_its_owners_for_twelve_hours() {
        let sessions = Sessions::new("secret");
        for owner in [Owner::AdminToken, Owner::Key("0a1b2c3d".to_owned())] {
            let session = session(owner);
            let cookie = sessions.cookie(&session);
            assert_eq!(sessions.verify(&cookie, NOW).as_ref(), Some(&session));
            let late = NOW + 12 * HOUR;
            assert_eq!(sessions.verify(&cookie, late - 1), Some(session));
            assert_eq!(sessions.verify(&cookie, late), None);
        }
    }

    #[test]
    fn a_changed_cookie_and_one_of_another_token_are_not_valid() {
        let sessions = Sessions::new("secret");
        let cookie = sessions.cookie(&session(Owner::Key("0a1b2c3d".to_owned())));
        assert!(Sessions::new("secret").verify(&cookie, NOW).is_some());
        assert_eq!(Sessions::new("other").verify(&cookie, NOW), None);
        assert_eq!(
            sessions.verify(&cookie.replace("0a1b2c3d", "admin"), NOW),
            None
        );
        for at in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8_lossy(&changed).into_owned();
            assert_eq!(sessions.verify(&changed, NOW), None, "{changed}");
        }
        for text in ["", ".", "...", "1.admin.9", "1.admin.9999999999999."] {
            assert_eq!(sessions.verify(text, NOW), None, "{text}");
        }
    }

    #[test]
    fn a_code_is_valid_once_and_for_a_minute() {
        let sessions = Sessions::new("secret");
        let code = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        assert_eq!(sessions.redeem("other", NOW), None);
        assert_eq!(sessions.redeem(&code, NOW), Some(Owner::AdminToken));
        assert_eq!(sessions.redeem(&code, NOW), None);
        let code = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        assert_eq!(sessions.redeem(&code, NOW + 60_000), None);
    }

    #[test]
    fn codes_are_bounded() {
        let sessions = Sessions::new("secret");
        let first = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        for _ in 0..MAX_CODES {
            sessions.new_code(Owner::AdminToken, NOW).unwrap();
        }
        assert_eq!(sessions.redeem(&first, NOW), None);
        assert_eq!(sessions.codes.lock().unwrap().len(), MAX_CODES);
    }
}
