//! The handshake: both sides prove that they have the link's secret, without sending it.
//!
//! Each side picks a nonce; a proof is the HMAC-SHA256, keyed with the secret, of the protocol, the prover's role, both hellos
//! and the worker's identity. The role keeps a proof from being sent back to its maker, the nonces keep it from being used
//! twice, the identity keeps one worker from passing for another, and the ranges of versions keep both sides from being
//! talked down to an older version. Without a configured secret both use the empty one, and the
//! handshake still checks that the right worker is at the address. The messages after it are neither encrypted nor signed: the
//! link belongs on a network that others cannot write to.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    hello::{Agreement, Hello, VersionRange},
    identity::{Proof, WorkerIdentity},
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

impl LinkSecret {
    /// Returns true if there is no secret.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
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
    /// The sides have no version of the protocol in common.
    #[error("no common protocol version: the gateway speaks {gateway}, the worker {worker}")]
    NoCommonVersion {
        /// The versions that the gateway speaks.
        gateway: VersionRange,
        /// The versions that the worker speaks.
        worker: VersionRange,
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

/// The data that both sides have once both hellos have been sent.
struct Exchange<'a> {
    secret: &'a LinkSecret,
    gateway: &'a Hello,
    worker: &'a Hello,
    identity: &'a WorkerIdentity,
}

impl Exchange<'_> {
    fn mac(&self, role: Role) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret.0).expect("HMAC takes keys of any length");
        mac.update(match role {
            Role::Gateway => b"packhorse-wire 2 gateway",
            Role::Worker => b"packhorse-wire 2 worker ",
        });
        let mut bytes = Vec::new();
        self.gateway.encode_metadata(&mut bytes);
        self.worker.encode_metadata(&mut bytes);
        self.identity.encode_metadata(&mut bytes);
        mac.update(&bytes);
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

    fn agree(&self) -> Result<Agreement, HandshakeError> {
        let none = || HandshakeError::NoCommonVersion {
            gateway: self.gateway.versions,
            worker: self.worker.versions,
        };
        self.gateway.agree(self.worker).ok_or_else(none)
    }
}

/// The gateway's side of the handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    secret: LinkSecret,
    hello: Hello,
    expected: WorkerIdentity,
    agreement: Option<Agreement>,
}

/// The gateway's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Sends this and waits for the answer.
    Send(ToWorker),
    /// The worker takes batches, by the rules that both sides have in common.
    Accepted(Agreement),
}

impl ClientHandshake {
    /// Creates the handshake for a connection to the worker `expected`.
    pub fn new(secret: LinkSecret, hello: Hello, expected: WorkerIdentity) -> Self {
        Self {
            secret,
            hello,
            expected,
            agreement: None,
        }
    }

    /// Returns the first message to send.
    pub fn hello(&self) -> ToWorker {
        ToWorker::Hello(self.hello)
    }

    /// Handles the worker's next message.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn handle(&mut self, message: ToGateway) -> Result<ClientStep, HandshakeError> {
        match message {
            ToGateway::Challenge(challenge) if self.agreement.is_none() => {
                self.answer(&challenge).map(ClientStep::Send)
            }
            ToGateway::Accept => {
                let agreement = self.agreement.ok_or(HandshakeError::Unexpected)?;
                Ok(ClientStep::Accepted(agreement))
            }
            ToGateway::Close(reason) => Err(HandshakeError::Refused(reason)),
            _ => Err(HandshakeError::Unexpected),
        }
    }

    fn answer(&mut self, challenge: &Challenge) -> Result<ToWorker, HandshakeError> {
        let exchange = Exchange {
            secret: &self.secret,
            gateway: &self.hello,
            worker: &challenge.hello,
            identity: &challenge.identity,
        };
        exchange.check(Role::Worker, &challenge.proof)?;
        if challenge.identity != self.expected {
            return Err(HandshakeError::Identity {
                expected: Box::new(self.expected),
                found: Box::new(challenge.identity),
            });
        }
        let proof = exchange.prove(Role::Gateway);
        self.agreement = Some(exchange.agree()?);
        Ok(ToWorker::Proof(proof))
    }
}

/// The worker's side of the handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    secret: LinkSecret,
    hello: Hello,
    identity: WorkerIdentity,
    gateway: Option<Hello>,
}

/// The worker's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// Sends this and waits for the answer.
    Send(ToGateway),
    /// Sends this, after which the gateway may send batches by the rules that both sides have in common.
    Accept(ToGateway, Agreement),
}

impl ServerHandshake {
    /// Creates the handshake for a connection that was just accepted.
    pub fn new(secret: LinkSecret, hello: Hello, identity: WorkerIdentity) -> Self {
        Self {
            secret,
            hello,
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
            (ToWorker::Hello(gateway), None) => {
                self.gateway = Some(*gateway);
                self.exchange(gateway).agree()?;
                let proof = self.exchange(gateway).prove(Role::Worker);
                let challenge = Challenge {
                    hello: self.hello,
                    proof,
                    identity: self.identity,
                };
                Ok(ServerStep::Send(ToGateway::Challenge(Box::new(challenge))))
            }
            (ToWorker::Proof(proof), Some(gateway)) => {
                let exchange = self.exchange(&gateway);
                exchange.check(Role::Gateway, proof)?;
                Ok(ServerStep::Accept(ToGateway::Accept, exchange.agree()?))
            }
            _ => Err(HandshakeError::Unexpected),
        }
    }

    fn exchange<'a>(&'a self, gateway: &'a Hello) -> Exchange<'a> {
        Exchange {
            secret: &self.secret,
            gateway,
            worker: &self.hello,
            identity: &self.identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ArtifactDigest, Generation, ReplicaId};

    use super::*;
    use crate::hello::Features;

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

    fn hello(byte: u8) -> Hello {
        Hello::new(Features::NONE, [byte; 32])
    }

    fn speaking(byte: u8, first: u8, last: u8, features: u32) -> Hello {
        Hello {
            versions: VersionRange { first, last },
            features: Features(features),
            nonce: [byte; 32],
        }
    }

    /// Runs both sides to the end. Returns the gateway's result and the worker's.
    fn run(
        gateway: &str,
        worker: &str,
    ) -> (Result<(), HandshakeError>, Result<(), HandshakeError>) {
        let client = ClientHandshake::new(secret(gateway), hello(1), identity(0));
        let server = ServerHandshake::new(secret(worker), hello(2), identity(0));
        let (client, server) = run_to_end(client, server);
        (client.map(drop), server.map(drop))
    }

    type Outcome = Result<Agreement, HandshakeError>;

    fn run_to_end(mut client: ClientHandshake, mut server: ServerHandshake) -> (Outcome, Outcome) {
        let mut to_worker = client.hello();
        loop {
            let (to_gateway, at_worker) = match server.handle(&to_worker) {
                Ok(ServerStep::Send(message)) => (message, None),
                Ok(ServerStep::Accept(message, agreement)) => (message, Some(agreement)),
                Err(e) => {
                    return (
                        Err(client.handle(ToGateway::Close(e.to_string())).unwrap_err()),
                        Err(e),
                    );
                }
            };
            match client.handle(to_gateway) {
                Ok(ClientStep::Send(message)) => to_worker = message,
                Ok(ClientStep::Accepted(agreement)) => {
                    return (Ok(agreement), Ok(at_worker.expect("the worker accepted")));
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
        let mut server = ServerHandshake::new(secret("s3cret"), hello(2), identity(0));
        let Ok(ServerStep::Send(ToGateway::Challenge(challenge))) =
            server.handle(&ToWorker::Hello(hello(1)))
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
        let mut client = ClientHandshake::new(secret("s"), hello(1), identity(0));
        let mut first = ServerHandshake::new(secret("s"), hello(2), identity(0));
        let Ok(ServerStep::Send(challenge)) = first.handle(&client.hello()) else {
            panic!()
        };
        let Ok(ClientStep::Send(proof)) = client.handle(challenge) else {
            panic!()
        };
        let mut second = ServerHandshake::new(secret("s"), hello(3), identity(0));
        second.handle(&ToWorker::Hello(hello(1))).unwrap();
        assert_eq!(second.handle(&proof), Err(HandshakeError::Proof));
        assert_eq!(
            first.handle(&proof),
            Ok(ServerStep::Accept(
                ToGateway::Accept,
                Agreement {
                    version: VersionRange::SUPPORTED.last,
                    features: Features::NONE,
                }
            ))
        );
    }

    #[test]
    fn a_gateway_notices_another_worker_at_the_address() {
        let mut client = ClientHandshake::new(secret("s"), hello(1), identity(0));
        let mut server = ServerHandshake::new(secret("s"), hello(2), identity(1));
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
    fn sides_one_version_apart_use_the_older_and_their_common_features() {
        for (gateway, worker) in [((2, 3), (2, 2)), ((2, 2), (2, 3)), ((1, 2), (2, 3))] {
            let ours = speaking(1, gateway.0, gateway.1, 0b11);
            let theirs = speaking(2, worker.0, worker.1, 0b10);
            let outcome = run_to_end(
                ClientHandshake::new(secret("s"), ours, identity(0)),
                ServerHandshake::new(secret("s"), theirs, identity(0)),
            );
            let agreement = Agreement {
                version: 2,
                features: Features(0b10),
            };
            assert_eq!(outcome, (Ok(agreement), Ok(agreement)));
        }
    }

    #[test]
    fn sides_without_a_common_version_part_with_a_reason() {
        for (gateway, worker) in [((3, 4), (2, 2)), ((2, 2), (3, 4))] {
            let (at_gateway, at_worker) = run_to_end(
                ClientHandshake::new(
                    secret("s"),
                    speaking(1, gateway.0, gateway.1, 0),
                    identity(0),
                ),
                ServerHandshake::new(secret("s"), speaking(2, worker.0, worker.1, 0), identity(0)),
            );
            let reason = at_worker.unwrap_err().to_string();
            let (newer, older) = ("3 to 4", "2");
            let expected = if gateway == (3, 4) {
                format!(
                    "no common protocol version: the gateway speaks {newer}, the worker {older}"
                )
            } else {
                format!(
                    "no common protocol version: the gateway speaks {older}, the worker {newer}"
                )
            };
            assert_eq!(reason, expected);
            assert_eq!(at_gateway, Err(HandshakeError::Refused(expected)));
        }
    }

    #[test]
    fn nobody_between_the_sides_can_change_what_they_say_of_themselves() {
        let tampered = |change: fn(&mut Hello)| {
            let mut client =
                ClientHandshake::new(secret("s"), speaking(1, 2, 3, 0b11), identity(0));
            let mut server =
                ServerHandshake::new(secret("s"), speaking(2, 2, 3, 0b11), identity(0));
            let ToWorker::Hello(mut sent) = client.hello() else {
                panic!("a hello comes first")
            };
            change(&mut sent);
            let Ok(ServerStep::Send(challenge)) = server.handle(&ToWorker::Hello(sent)) else {
                panic!("a hello is answered with a challenge")
            };
            client.handle(challenge).unwrap_err()
        };
        assert_eq!(
            tampered(|hello| hello.versions.last = 2),
            HandshakeError::Proof
        );
        assert_eq!(
            tampered(|hello| hello.features = Features::NONE),
            HandshakeError::Proof
        );
        assert_eq!(tampered(|hello| hello.nonce[0] ^= 1), HandshakeError::Proof);
    }

    #[test]
    fn messages_out_of_turn_are_refused() {
        let mut server = ServerHandshake::new(secret(""), hello(2), identity(0));
        assert_eq!(
            server.handle(&ToWorker::Proof([0; 32])),
            Err(HandshakeError::Unexpected)
        );
        server.handle(&ToWorker::Hello(hello(1))).unwrap();
        assert_eq!(
            server.handle(&ToWorker::Hello(hello(1))),
            Err(HandshakeError::Unexpected)
        );
        let mut client = ClientHandshake::new(secret(""), hello(1), identity(0));
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
