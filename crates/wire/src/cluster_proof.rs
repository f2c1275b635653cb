//! The proof by which a gateway takes over a node from another cluster.
//!
//! An agent obeys the cluster that it knows. Another one, for example that of a gateway whose state folder was deleted, it obeys only
//! after a proof: the HMAC-SHA256 of the agent's nonce and the new cluster's identity. The key is the link secret, which gateway and
//! node share; where there is none, and therefore every worker listens on the gateway's machine only, it is the SHA-256 of the agent's
//! token, which the agent reads again each time, because a gateway that lost its state has made another one.

use hmac::{Hmac, KeyInit, Mac};
use packhorse_cluster::ClusterId;
use sha2::{Digest as _, Sha256};

use crate::{LinkSecret, Proof};

/// The key of proofs between a gateway and an agent.
pub struct ClusterKey(Vec<u8>);

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

impl ClusterKey {
    /// Creates the key from the link secret, or from the agent's token if there is no secret.
    pub fn new(secret: &LinkSecret, token: &str) -> Self {
        if secret.is_none() {
            Self(Sha256::digest(token).to_vec())
        } else {
            Self(secret.as_bytes().to_vec())
        }
    }

    fn mac(&self, nonce: &str, cluster: &ClusterId) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // The lengths keep one pair of texts from looking like another.
        for text in ["packhorse cluster", nonce, cluster.as_str()] {
            mac.update(&(text.len() as u64).to_le_bytes());
            mac.update(text.as_bytes());
        }
        mac
    }

    /// Makes the proof for an agent's nonce.
    pub fn prove(&self, nonce: &str, cluster: &ClusterId) -> Proof {
        self.mac(nonce, cluster).finalize().into_bytes().into()
    }

    /// Returns true if this is the proof for the nonce. Takes the same time for every wrong one.
    pub fn verifies(&self, nonce: &str, cluster: &ClusterId, proof: &[u8]) -> bool {
        self.mac(nonce, cluster).verify_slice(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str, token: &str) -> ClusterKey {
        ClusterKey::new(&LinkSecret::from_file_content(secret.as_bytes()), token)
    }

    #[test]
    fn only_the_same_key_nonce_and_cluster_verify() {
        let cluster: ClusterId = "c1".parse().unwrap();
        let proof = key("secret", "token").prove("00ff", &cluster);
        assert!(key("secret", "other token").verifies("00ff", &cluster, &proof));
        assert!(!key("other", "token").verifies("00ff", &cluster, &proof));
        assert!(!key("", "token").verifies("00ff", &cluster, &proof));
        assert!(!key("secret", "token").verifies("00fe", &cluster, &proof));
        let shifted: ClusterId = "fc1".parse().unwrap();
        assert!(!key("secret", "token").verifies("00f", &shifted, &proof));
        assert!(!key("secret", "token").verifies("00ff", &cluster, &proof[..31]));
        assert!(!key("secret", "token").verifies("00ff", &cluster, b""));
    }

    #[test]
    fn without_a_link_secret_the_token_is_the_key() {
        let cluster: ClusterId = "c1".parse().unwrap();
        let proof = key("", "token").prove("00ff", &cluster);
        assert!(key("", "token").verifies("00ff", &cluster, &proof));
        assert!(!key("", "other").verifies("00ff", &cluster, &proof));
    }
}
