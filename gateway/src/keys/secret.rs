//! The text of a key.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::state_dir::{SecretError, random_bytes};

/// The beginning of every key, by which it can be found in files where it should not be.
pub(super) const PREFIX: &str = "phk_";

/// The SHA-256 of a key's text. Comparing hashes, which have equal length, in constant time reveals nothing about the key.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Returns the hash of a key's text.
    pub(super) fn of(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Returns the name of the text in sessions, which says nothing of its hash.
    pub(super) fn fingerprint(&self) -> String {
        let hash = Sha256::digest(self.0);
        URL_SAFE_NO_PAD.encode(&hash[..12])
    }

    /// Returns true if both are hashes of the same text.
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// Returns a random identity of a key: eight hexadecimal digits.
pub(super) fn random_id() -> Result<String, SecretError> {
    Ok(hex::encode(random_bytes::<4>()?))
}

/// Returns the text of a new key with this identity: 256 random bits.
pub(super) fn random_key(id: &str) -> Result<String, SecretError> {
    let secret = URL_SAFE_NO_PAD.encode(random_bytes::<32>()?);
    Ok(format!("{PREFIX}{id}_{secret}"))
}

/// Returns the identity in the text of a key; `None` if the text is no key.
pub(super) fn id_of(text: &str) -> Option<&str> {
    let (id, _) = text.strip_prefix(PREFIX)?.split_once('_')?;
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_identity_and_256_bits() {
        let id = random_id().unwrap();
        assert_eq!(id.len(), 8);
        let key = random_key(&id).unwrap();
        assert_eq!(id_of(&key), Some(&*id));
        assert_eq!(key.len(), PREFIX.len() + 8 + 1 + 43);
        assert_ne!(key, random_key(&id).unwrap());
        assert!(KeyHash::of(&key).matches(&KeyHash::of(&key)));
        assert!(!KeyHash::of(&key).matches(&KeyHash::of(&id)));
        for text in ["", "phk_", "phk_12345678", "12345678_x", "admin-token"] {
            assert_eq!(id_of(text), None, "{text}");
        }
    }
}
