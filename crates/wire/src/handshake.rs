//! The handshake: both sides prove that they have the link's secret, without sending it.
//!
//! Each side picks a nonce; a proof is the HMAC-SHA256, keyed with the secret, of the protocol, the prover's role, both nonces
//! and the worker's identity. The role keeps a proof from being sent back to its maker, the nonces keep it from being used
//! twice, the identity keeps one worker from passing for another. Without a configured secret both use the empty one, and the
//! handshake still checks that the right worker is at the address. The messages after it are neither encrypted nor signed: the
//! link belongs on a network that others cannot write to.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    identity::{Nonce, Proof, WorkerIdentity},
    message::{Challenge, ToGateway, ToWorker},
};

/// The secret that a gateway shares with its workers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LinkSecret(Vec<u8>);

impl LinkSecret {
    /// Returns the empty secret: everyone who reaches the worker may use it.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads the content of a secret file; white space around the secret does not count.
    pub fn from_file_content(content: &[u8]) -> Self {
        Self(content.trim_ascii().to_vec())
    }
}

impl fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSecret(..)")
    }
}

/// The reason why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer does not have the secret.
    #[error("the peer has another link secret")]
    Proof,
    /// A worker other than the expected one listens at the address.
    #[error("expected {expected}, found {found}")]
    Identity {
        /// The worker that should listen there.
        expected: Box<WorkerIdentity>,
        /// The worker that listens there.
        found: Box<WorkerIdentity>,
    },
    /// The worker refused, for this reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer sent a message that is not allowed at this point.
    #[error("unexpected message during the handshake")]
    Unexpected,
}

#[derive(Clone, Copy)]
enum Role {
    Gateway,
    Worker,
}

/// The data that both sides have once both nonces have been sent.
struct Exchange<'a> {
    secret: &'a LinkSecret,
    gateway: &'a Nonce,
    worker: &'a Nonce,
    identity: &'a WorkerIdentity,
}

impl Exchange<'_> {
    fn mac(&self, role: Role) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret.0).expect("HMAC takes keys of any length");
        mac.update(match role {
            Role::Gateway => b"packhorse-wire 1 gateway",
            Role::Worker => b"packhorse-wire 1 worker ",
        });
        mac.update(self.gateway);
        mac.update(self.worker);
        let mut identity = Vec::new();
        self.identity.encode_metadata(&mut identity);
        mac.update(&identity);
        mac
    }

    fn prove(&self, role: Role) -> Proof {
        self.mac(role).finalize().into_bytes().into()
    }

    /// Checks a proof, in constant time.
    fn check(&self, role: Role, proof: &Proof) -> Result<(), HandshakeError> {
        self.mac(role)
            .verify_slice(proof)
            .map_err(|_| HandshakeError::Proof)
    }
}

/// The gateway's side of the handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    secret: LinkSecret,
    nonce: Nonce,
    expected: WorkerIdentity,
    proof_sent: bool,
}

/// The gateway's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Sends this and waits for the answer.
    Send(ToWorker),
    /// The worker takes batches.
    Accepted,
}

impl ClientHandshake {
    /// Creates the handshake for a connection to the worker `expected`; `nonce` is fresh from the system's generator.
    pub fn new(secret: LinkSecret, nonce: Nonce, expected: WorkerIdentity) -> Self {
        Self {
            secret,
            nonce,
            expected,
            proof_sent: false,
        }
    }

    /// Returns the first message to send.
    pub fn hello(&self) -> ToWorker {
        ToWorker::Hello(self.nonce)
    }

    /// Handles the worker's next message.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn handle(&mut self, message: ToGateway) -> Result<ClientStep, HandshakeError> {
        match message {
            ToGateway::Challenge(challenge) if !self.proof_sent => {
                self.proof_sent = true;
                self.answer(&challenge).map(ClientStep::Send)
            }
            ToGateway::Accept if self.proof_sent => Ok(ClientStep::Accepted),
            ToGateway::Close(reason) => Err(HandshakeError::Refused(reason)),
            _ => Err(HandshakeError::Unexpected),
        }
    }

    fn answer(&self, challenge: &Challenge) -> Result<ToWorker, HandshakeError> {
        let exchange = Exchange {
            secret: &self.secret,
            gateway: &self.nonce,
            worker: &challenge.nonce,
            identity: &challenge.identity,
        };
        exchange.check(Role::Worker, &challenge.proof)?;
        if challenge.identity != self.expected {
            return Err(HandshakeError::Identity {
                expected: Box::new(self.expected),
                found: Box::new(challenge.identity),
            });
        }
        Ok(ToWorker::Proof(exchange.prove(Role::Gateway)))
    }
}

/// The worker's side of the handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    secret: LinkSecret,
    nonce: Nonce,
    identity: WorkerIdentity,
    gateway: Option<Nonce>,
}

/// The worker's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// Sends this and waits for the answer.
    Send(ToGateway),
    /// Sends this, after which the gateway may send batches.
    Accept(ToGateway),
}

impl ServerHandshake {
    /// Creates the handshake for a connection that was just accepted; `nonce` is fresh from the system's generator.
    pub fn new(secret: LinkSecret, nonce: Nonce, identity: WorkerIdentity) -> Self {
        Self {
            secret,
            nonce,
            identity,
            gateway: None,
        }
    }

    /// Handles the gateway's next message.
    ///
    /// # Errors
    /// The error's text goes to the gateway in [`ToGateway::Close`], and the connection is to be closed.
    pub fn handle(&mut self, message: &ToWorker) -> Result<ServerStep, HandshakeError> {
        match (message, self.gateway) {
            (ToWorker::Hello(nonce), None) => {
                self.gateway = Some(*nonce);
                let proof = self.exchange(nonce).prove(Role::Worker);
                let challenge = Challenge {
                    nonce: self.nonce,
                    proof,
                    identity: self.identity,
                };
                Ok(ServerStep::Send(ToGateway::Challenge(Box::new(challenge))))
            }
            (ToWorker::Proof(proof), Some(gateway)) => {
                self.exchange(&gateway).check(Role::Gateway, proof)?;
                Ok(ServerStep::Accept(ToGateway::Accept))
            }
            _ => Err(HandshakeError::Unexpected),
        }
    }

    fn exchange<'a>(&'a self, gateway: &'a Nonce) -> Exchange<'a> {
        Exchange {
            secret: &self.secret,
            gateway,
            worker: &self.nonce,
            identity: &self.identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ArtifactDigest, Generation, ReplicaId};

    use super::*;

    fn identity(number: u32) -> WorkerIdentity {
        WorkerIdentity {
            replica: ReplicaId {
                generation: Generation(3),
                number,
            },
            artifact: ArtifactDigest::from_sha256([9; 32]),
            batch_size: 8,
        }
    }

    fn secret(text: &str) -> LinkSecret {
        LinkSecret::from_file_content(text.as_bytes())
    }

    /// Runs both sides to the end. Returns the gateway's result and the worker's.
    fn run(
        gateway: &str,
        worker: &str,
    ) -> (Result<(), HandshakeError>, Result<(), HandshakeError>) {
        let mut client = ClientHandshake::new(secret(gateway), [1; 32], identity(0));
        let mut server = ServerHandshake::new(secret(worker), [2; 32], identity(0));
        let mut to_worker = client.hello();
        loop {
            let (to_gateway, accepted) = match server.handle(&to_worker) {
                Ok(ServerStep::Send(message)) => (message, false),
                Ok(ServerStep::Accept(message)) => (message, true),
                Err(e) => {
                    return (
                        client.handle(ToGateway::Close(e.to_string())).map(drop),
                        Err(e),
                    );
                }
            };
            match client.handle(to_gateway) {
                Ok(ClientStep::Send(message)) => to_worker = message,
                Ok(ClientStep::Accepted) => {
                    assert!(accepted);
                    return (Ok(()), Ok(()));
                }
                Err(e) => return (Err(e), Err(HandshakeError::Unexpected)),
            }
        }
    }

    #[test]
    fn sides_with_the_same_secret_agree() {
        assert_eq!(run("", ""), (Ok(()), Ok(())));
        assert_eq!(run("s3cret", "s3cret\n"), (Ok(()), Ok(())));
    }

    #[test]
    fn a_gateway_notices_a_worker_without_the_secret() {
        assert_eq!(run("s3cret", "other").0, Err(HandshakeError::Proof));
        assert_eq!(run("s3cret", "").0, Err(HandshakeError::Proof));
    }

    #[test]
    fn a_worker_refuses_a_gateway_without_the_secret() {
        let mut server = ServerHandshake::new(secret("s3cret"), [2; 32], identity(0));
        let Ok(ServerStep::Send(ToGateway::Challenge(challenge))) =
            server.handle(&ToWorker::Hello([1; 32]))
        else {
            panic!("a hello is answered with a challenge");
        };
        // Sending the worker's own proof back, or one made with another secret, does not help.
        for proof in [challenge.proof, [0; 32]] {
            assert_eq!(
                server.handle(&ToWorker::Proof(proof)),
                Err(HandshakeError::Proof)
            );
        }
    }

    #[test]
    fn a_proof_of_one_connection_is_worth_nothing_on_another() {
        let mut client = ClientHandshake::new(secret("s"), [1; 32], identity(0));
        let mut first = ServerHandshake::new(secret("s"), [2; 32], identity(0));
        let Ok(ServerStep::Send(challenge)) = first.handle(&client.hello()) else {
            panic!()
        };
        let Ok(ClientStep::Send(proof)) = client.handle(challenge) else {
            panic!()
        };
        let mut second = ServerHandshake::new(secret("s"), [3; 32], identity(0));
        second.handle(&ToWorker::Hello([1; 32])).unwrap();
        assert_eq!(second.handle(&proof), Err(HandshakeError::Proof));
        assert_eq!(
            first.handle(&proof),
            Ok(ServerStep::Accept(ToGateway::Accept))
        );
    }

    #[test]
    fn a_gateway_notices_another_worker_at_the_address() {
        let mut client = ClientHandshake::new(secret("s"), [1; 32], identity(0));
        let mut server = ServerHandshake::new(secret("s"), [2; 32], identity(1));
        let Ok(ServerStep::Send(challenge)) = server.handle(&client.hello()) else {
            panic!()
        };
        let error = client.handle(challenge).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("expected replica 3-0 of sha256:"),
            "{error}"
        );
    }

    #[test]
    fn messages_out_of_turn_are_refused() {
        let mut server = ServerHandshake::new(secret(""), [2; 32], identity(0));
        assert_eq!(
            server.handle(&ToWorker::Proof([0; 32])),
            Err(HandshakeError::Unexpected)
        );
        server.handle(&ToWorker::Hello([1; 32])).unwrap();
        assert_eq!(
            server.handle(&ToWorker::Hello([1; 32])),
            Err(HandshakeError::Unexpected)
        );
        let mut client = ClientHandshake::new(secret(""), [1; 32], identity(0));
        assert_eq!(
            client.handle(ToGateway::Accept),
            Err(HandshakeError::Unexpected)
        );
        let refused = client
            .handle(ToGateway::Close("full".to_owned()))
            .unwrap_err();
        assert_eq!(refused.to_string(), "refused: full");
    }

    #[test]
    fn a_secret_does_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", secret("s3cret")), "LinkSecret(..)");
    }
}
