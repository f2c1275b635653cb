//! Sessions of browsers, and the codes that start them.
//!
//! A session is a cookie that says whose it is and until when, with a signature. It is stored nowhere: it outlives a restart of the
//! gateway, and any number of them takes no memory. Its owner is looked up at every request, so that it ends with the secret of the API key that
//! started it. The key of the signatures is derived from the admin token: with another token all sessions end. Only sessions that were signed out
//! are remembered, in the database too, until they would have ended.
//!
//! A code is for `packhorse dashboard`, which opens a browser: it is valid once and for a minute, and nobody learns a token from the
//! address that it stands in.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::state_dir::{SecretError, random_bytes, random_secret};

/// The time for which a session lasts.
pub(crate) const LIFETIME: Duration = Duration::from_hours(12);
/// The time for which a code is valid.
pub(crate) const CODE_LIFETIME: Duration = Duration::from_mins(1);
/// The most codes. Further ones make the oldest invalid.
const MAX_CODES: usize = 64;
/// The most signed-out sessions of an owner that are remembered one by one. With a further one all that the owner has begun so far end.
const MAX_ENDED: usize = 64;
/// The version of the cookie's format.
const VERSION: &str = "2";
/// The owner in a cookie that stands for the admin token. No key has this identity.
const ADMIN: &str = "admin";

/// Sessions and codes. Clones share them.
#[derive(Clone)]
pub(crate) struct Sessions {
    key: Arc<[u8; 32]>,
    codes: Arc<Mutex<VecDeque<Code>>>,
    ended: Arc<Mutex<EndedSessions>>,
}

/// The sessions that were signed out and would not have ended yet, by their owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndedSessions(BTreeMap<String, EndedOfOwner>);

/// The signed-out sessions of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct EndedOfOwner {
    /// The identities of sessions and their ends.
    ids: BTreeMap<String, i64>,
    /// All sessions that would end before this time have ended.
    before_ms: i64,
}

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The holder of the admin token.
    AdminToken,
    /// The holder of an API key, as long as the secret is one of the key.
    Key {
        /// The key's identity.
        id: String,
        /// The fingerprint of the secret.
        secret: String,
    },
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// Its identity, by which it is signed out.
    id: String,
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

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Owner {
    fn parse(text: &str) -> Option<Self> {
        if text == ADMIN {
            return Some(Self::AdminToken);
        }
        let (id, secret) = text.split_once(':')?;
        Some(Self::Key {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AdminToken => f.write_str(ADMIN),
            Self::Key { id, secret } => write!(f, "{id}:{secret}"),
        }
    }
}

impl Session {
    /// Starts a session. Times are Unix times in milliseconds.
    pub(crate) fn new(owner: Owner, now_ms: i64) -> Result<Self, SecretError> {
        Ok(Self {
            id: URL_SAFE_NO_PAD.encode(random_bytes::<12>()?),
            owner,
            expires_ms: after(now_ms, LIFETIME),
        })
    }
}

impl EndedSessions {
    fn contains(&self, session: &Session) -> bool {
        let of_owner = self.0.get(&session.owner.to_string());
        of_owner.is_some_and(|ended| {
            session.expires_ms < ended.before_ms || ended.ids.contains_key(&session.id)
        })
    }

    fn insert(&mut self, session: &Session, now_ms: i64) {
        self.0.retain(|_, ended| {
            ended.ids.retain(|_, expires_ms| now_ms < *expires_ms);
            !ended.ids.is_empty() || now_ms < ended.before_ms
        });
        let ended = self.0.entry(session.owner.to_string()).or_default();
        if ended.ids.len() >= MAX_ENDED {
            ended.ids.clear();
            // A session that begins from now on ends later.
            ended.before_ms = after(now_ms, LIFETIME);
        }
        ended.ids.insert(session.id.clone(), session.expires_ms);
    }
}

impl Sessions {
    /// Creates the sessions of a gateway with this admin token, of which these were signed out.
    pub(crate) fn new(admin_token: &str, ended: EndedSessions) -> Self {
        let key = sign(admin_token.as_bytes(), "packhorse sessions");
        Self {
            key: Arc::new(key),
            codes: Arc::default(),
            ended: Arc::new(Mutex::new(ended)),
        }
    }

    /// Returns the value of a session's cookie.
    pub(crate) fn cookie(&self, session: &Session) -> String {
        let Session {
            id,
            owner,
            expires_ms,
        } = session;
        let statement = format!("{VERSION}.{owner}.{id}.{expires_ms}");
        let signature = URL_SAFE_NO_PAD.encode(sign(self.key.as_ref(), &statement));
        format!("{statement}.{signature}")
    }

    /// Ends a session before its time. Returns all that were signed out, for the database.
    pub(crate) fn end(&self, session: &Session, now_ms: i64) -> EndedSessions {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.insert(session, now_ms);
        ended.clone()
    }

    /// Returns the session of a cookie; `None` if it is not of this gateway or has ended.
    pub(crate) fn verify(&self, cookie: &str, now_ms: i64) -> Option<Session> {
        let (statement, signature) = cookie.rsplit_once('.')?;
        let expected = URL_SAFE_NO_PAD.encode(sign(self.key.as_ref(), statement));
        let is_signed: bool = expected.as_bytes().ct_eq(signature.as_bytes()).into();
        let mut parts = statement.splitn(4, '.');
        let version = parts.next()?;
        let (owner, id, expires) = (parts.next()?, parts.next()?, parts.next()?);
        let session = Session {
            id: id.to_owned(),
            owner: Owner::parse(owner)?,
            expires_ms: expires.parse().ok()?,
        };
        let is_valid = is_signed && version == VERSION && now_ms < session.expires_ms;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        (is_valid && !ended.contains(&session)).then_some(session)
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
        Session::new(owner, NOW).unwrap()
    }

    fn sessions() -> Sessions {
        Sessions::new("secret", EndedSessions::default())
    }

    fn key() -> Owner {
        Owner::Key {
            id: "0a1b2c3d".to_owned(),
            secret: "print".to_owned(),
        }
    }

    #[test]
    fn a_cookie_is_its_owners_for_twelve_hours() {
        let sessions = sessions();
        for owner in [Owner::AdminToken, key()] {
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
        let sessions = sessions();
        let cookie = sessions.cookie(&session(key()));
        assert!(self::sessions().verify(&cookie, NOW).is_some());
        let other = Sessions::new("other", EndedSessions::default());
        assert_eq!(other.verify(&cookie, NOW), None);
        assert_eq!(
            sessions.verify(&cookie.replace("0a1b2c3d:print", "admin"), NOW),
            None
        );
        for at in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8_lossy(&changed).into_owned();
            assert_eq!(sessions.verify(&changed, NOW), None, "{changed}");
        }
        for text in ["", ".", "...", "2.admin.x.9", "2.admin.x.9999999999999."] {
            assert_eq!(sessions.verify(text, NOW), None, "{text}");
        }
    }

    #[test]
    fn a_signed_out_session_has_ended_and_the_others_of_its_owner_have_not() {
        let sessions = sessions();
        let [out, other] = [(); 2].map(|()| session(key()));
        let ended = sessions.end(&out, NOW);
        let text = serde_json::to_string(&ended).unwrap();
        let restarted = Sessions::new("secret", serde_json::from_str(&text).unwrap());
        for sessions in [sessions, restarted] {
            let verified = |session| sessions.verify(&sessions.cookie(session), NOW + HOUR);
            assert_eq!(verified(&out), None);
            assert_eq!(verified(&other), Some(other.clone()));
        }
    }

    #[test]
    fn signed_out_sessions_are_bounded_and_forgotten_when_they_would_have_ended() {
        let sessions = sessions();
        let [first, open] = [(); 2].map(|()| session(key()));
        sessions.end(&first, NOW);
        for _ in 0..MAX_ENDED {
            sessions.end(&session(key()), NOW + 1);
        }
        let late = |session: &Session| sessions.verify(&sessions.cookie(session), NOW + HOUR);
        assert_eq!(late(&first), None);
        assert_eq!(late(&open), None, "with too many, all of the owner");
        let next = Session::new(key(), NOW + 1).unwrap();
        assert_eq!(late(&next), Some(next.clone()));
        let admin = session(Owner::AdminToken);
        assert_eq!(late(&admin), Some(admin.clone()), "and of no other");
        assert!(sessions.ended.lock().unwrap().0["0a1b2c3d:print"].ids.len() <= MAX_ENDED);
        let ended = sessions.end(&admin, NOW + 13 * HOUR);
        assert_eq!(ended.0.len(), 1, "{ended:?}");
    }

    #[test]
    fn a_code_is_valid_once_and_for_a_minute() {
        let sessions = sessions();
        let code = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        assert_eq!(sessions.redeem("other", NOW), None);
        assert_eq!(sessions.redeem(&code, NOW), Some(Owner::AdminToken));
        assert_eq!(sessions.redeem(&code, NOW), None);
        let code = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        assert_eq!(sessions.redeem(&code, NOW + 60_000), None);
    }

    #[test]
    fn codes_are_bounded() {
        let sessions = sessions();
        let first = sessions.new_code(Owner::AdminToken, NOW).unwrap();
        for _ in 0..MAX_CODES {
            sessions.new_code(Owner::AdminToken, NOW).unwrap();
        }
        assert_eq!(sessions.redeem(&first, NOW), None);
        assert_eq!(sessions.codes.lock().unwrap().len(), MAX_CODES);
    }
}
