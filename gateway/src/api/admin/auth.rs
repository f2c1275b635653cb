//! Authorisation by bearer tokens, API keys and sessions, which are compared in constant time.
//!
//! The admin's token and keys with the scope `admin` open every route; keys with the scope `read` those that only read and show no secret.
//! A session stands for the token or key that started it. An agent's token opens the routes of agents: the agents' common token those of
//! every node without a token of its own, the token of a node those of this node.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
};

use axum::{
    extract::{ConnectInfo, RawPathParams, Request, State},
    http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use packhorse_api::{
    AuditActor, CSRF_HEADER, SESSION_COOKIE, SessionRequest, SessionScope, SessionView,
};
use packhorse_cluster::{ClusterId, NodeName};
use packhorse_wire::{ClusterKey, LinkSecret};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::sign_ins::SignIns;
use crate::{
    api::ApiError,
    keys::{AdminScope, KeyOwner, Keyring},
    serve::ClientMark,
    sessions::{EndedSessions, Owner, Session, Sessions},
    state_dir::random_secret,
    store::{Store, StoreError},
};

/// The path of backups, which contain tokens.
const BACKUP: &str = "/v1/backup";
/// The path of previews, which change nothing although they are posted.
const PREVIEW: &str = "/v1/plans/preview";
/// The name of the admin token's owner.
const ADMIN_NAME: &str = "admin";
/// The largest number of nodes with a token of their own.
const MAX_NODE_TOKENS: usize = 4096;

/// The tokens of a gateway, as hashes, and the secret that it shares with the workers.
#[derive(Clone, Debug)]
pub struct Credentials {
    admin: TokenHash,
    agent: TokenHash,
    keys: Keyring,
    nodes: Arc<RwLock<BTreeMap<NodeName, TokenHash>>>,
    sessions: Sessions,
    pub(super) sign_ins: SignIns,
    link_secret: LinkSecret,
}

/// The hash of a token. Comparing hashes, which have equal length, in constant time reveals nothing about the token.
#[derive(Clone, Debug)]
struct TokenHash(Arc<[u8; 32]>);

/// The owner of a request's token.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Admin,
    /// A key that may only read.
    Reader,
    /// A key without a scope for the admin listener.
    Client,
    /// An agent with the common token.
    Agent,
    /// The agent of this node, with the node's token.
    Node(NodeName),
}

/// The sender of a request.
#[derive(Clone, Debug)]
struct Caller {
    role: Role,
    /// The name of the key, or of the admin token; empty for agents.
    name: String,
    /// The owner of a session that this caller starts; none for agents.
    owner: Option<Owner>,
    /// The end of the session, as Unix time in milliseconds; none for a token or key.
    session_ends_ms: Option<i64>,
}

impl TokenHash {
    fn new(token: &str) -> Self {
        Self(Arc::new(Sha256::digest(token).into()))
    }

    fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(other.0.as_ref()).into()
    }
}

impl Credentials {
    /// Creates the credentials from the tokens, the hashes of the nodes' tokens, the sessions that were signed out, and the link secret.
    pub(crate) fn new(
        admin: &str,
        agent: &str,
        nodes: BTreeMap<NodeName, [u8; 32]>,
        keys: Keyring,
        ended_sessions: EndedSessions,
        link_secret: LinkSecret,
    ) -> Self {
        let hashes = nodes.into_iter();
        let hashes = hashes.map(|(node, hash)| (node, TokenHash(Arc::new(hash))));
        Self {
            admin: TokenHash::new(admin),
            agent: TokenHash::new(agent),
            keys,
            nodes: Arc::new(RwLock::new(hashes.collect())),
            sessions: Sessions::new(admin, ended_sessions),
            sign_ins: SignIns::default(),
            link_secret,
        }
    }

    /// Makes and stores a new token for a node. Other tokens do not lease the node any more.
    pub(super) async fn new_node_token(
        &self,
        store: &Store,
        node: &NodeName,
    ) -> Result<String, ApiError> {
        let full =
            self.with_nodes(|nodes| nodes.len() >= MAX_NODE_TOKENS && !nodes.contains_key(node));
        if full {
            let message = format!("at most {MAX_NODE_TOKENS} nodes can have a token of their own");
            return Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message));
        }
        let token = random_secret().map_err(|e| ApiError::internal(&e))?;
        let hash = TokenHash::new(&token);
        store.set_node_token(node, *hash.0).await?;
        self.with_nodes(|nodes| nodes.insert(node.clone(), hash));
        Ok(token)
    }

    /// Removes the token of a node that was removed: the common token leases it again.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove_node_token(
        &self,
        store: &Store,
        node: &NodeName,
    ) -> Result<(), StoreError> {
        store.delete_node_token(node).await?;
        self.with_nodes(|nodes| nodes.remove(node));
        Ok(())
    }

    /// Returns the proof, in hexadecimal digits, by which an agent knows that this gateway may take over its node. The key is the link
    /// secret, or the token in the headers if there is none.
    pub(super) fn prove_cluster(
        &self,
        headers: &HeaderMap,
        nonce: &str,
        cluster: &ClusterId,
    ) -> String {
        let key = ClusterKey::new(&self.link_secret, bearer(headers).unwrap_or_default());
        hex::encode(key.prove(nonce, cluster))
    }

    /// Accesses the nodes' tokens. The lock is never held over an await.
    fn with_nodes<T>(&self, f: impl FnOnce(&mut BTreeMap<NodeName, TokenHash>) -> T) -> T {
        f(&mut self.nodes.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the reason why a role may not use a route of agents, whose path may name a node.
    fn refusal(&self, role: &Role, node: Option<&str>) -> Option<String> {
        match (role, node) {
            (Role::Admin, _) | (Role::Agent | Role::Node(_), None) => None,
            (Role::Reader | Role::Client, _) => Some(
                "this route requires an agent's token, the admin token or a key with the scope admin; another API key was given"
                    .to_owned(),
            ),
            (Role::Agent, Some(node)) => {
                let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
                let own = node
                    .parse()
                    .is_ok_and(|node: NodeName| nodes.contains_key(&node));
                own.then(|| {
                    format!(
                        "node {node} has a token of its own, and the agents' common token was given"
                    )
                })
            }
            (Role::Node(owner), Some(node)) => (owner.as_str() != node).then(|| {
                format!("the token is that of node {owner}; this is the path of node {node}")
            }),
        }
    }

    /// Returns the caller with the token or the session in the headers.
    fn caller(&self, headers: &HeaderMap, method: &Method) -> Result<Caller, ApiError> {
        if let Some(token) = bearer(headers) {
            let caller = self.caller_with(token);
            return caller.ok_or_else(|| unauthorized("the token is invalid"));
        }
        let Some(cookie) = session_cookie(headers) else {
            return Err(unauthorized(
                "this route requires a token: Authorization: Bearer TOKEN",
            ));
        };
        let session = self.sessions.verify(cookie, self.keys.now_ms());
        let session =
            session.ok_or_else(|| unauthorized("the session has ended; sign in again"))?;
        if !method.is_safe() && !headers.contains_key(CSRF_HEADER) {
            let message = format!(
                "a request with a session that changes something needs the header {CSRF_HEADER}"
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
        let caller = self.owner(session.owner);
        let caller =
            caller.ok_or_else(|| unauthorized("the key of the session is not valid any more"))?;
        Ok(Caller {
            session_ends_ms: Some(session.expires_ms),
            ..caller
        })
    }

    /// Returns the caller with a token or key; `None` if it is not valid.
    fn caller_with(&self, token: &str) -> Option<Caller> {
        if let Some(owner) = self.keys.owner(token) {
            return Some(owner.into());
        }
        let given = TokenHash::new(token);
        if self.admin.matches(&given) {
            return Some(Caller::admin());
        }
        if self.agent.matches(&given) {
            return Some(Caller::agent(Role::Agent));
        }
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, so that the time says nothing of which one it is.
        let owner = nodes.iter().rfold(None, |found, (node, hash)| {
            if hash.matches(&given) {
                Some(node)
            } else {
                found
            }
        });
        owner.map(|node| Caller::agent(Role::Node(node.clone())))
    }

    /// Returns the owner of a session or code; `None` if its key is not valid any more.
    fn owner(&self, owner: Owner) -> Option<Caller> {
        match owner {
            Owner::AdminToken => Some(Caller::admin()),
            Owner::Key { id, secret } => self.keys.owner_by_id(&id, &secret).map(Caller::from),
        }
    }

    /// Starts a session with a token or a code; the value of its cookie.
    pub(super) fn sign_in(
        &self,
        request: &SessionRequest,
    ) -> Result<(String, SessionView), ApiError> {
        let caller = match (&request.token, &request.code) {
            (Some(token), None) => self
                .caller_with(token)
                .filter(|caller| caller.owner.is_some())
                .ok_or_else(|| {
                    unauthorized("token: it is neither the admin token nor a valid key")
                })?,
            (None, Some(code)) => {
                let owner = self.sessions.redeem(code, self.keys.now_ms());
                let owner = owner
                    .ok_or_else(|| unauthorized("code: it is valid once, and for a minute"))?;
                self.owner(owner)
                    .ok_or_else(|| unauthorized("the key is not valid any more"))?
            }
            _ => {
                return Err(ApiError::bad_request(
                    "expected exactly one of token and code",
                ));
            }
        };
        let session = Session::new(caller.signed_in()?, self.keys.now_ms());
        let session = session.map_err(|e| ApiError::internal(&e))?;
        let caller = Caller {
            session_ends_ms: Some(session.expires_ms),
            ..caller
        };
        Ok((self.sessions.cookie(&session), caller.view()?))
    }

    /// Ends the session in the headers, if there is one, for good.
    pub(super) async fn sign_out(
        &self,
        store: &Store,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let now = self.keys.now_ms();
        let session = session_cookie(headers).and_then(|cookie| self.sessions.verify(cookie, now));
        if let Some(session) = session {
            store
                .set_ended_sessions(&self.sessions.end(&session, now))
                .await?;
        }
        Ok(())
    }

    /// Returns the caller's name and rights.
    pub(super) fn session_view(&self, headers: &HeaderMap) -> Result<SessionView, ApiError> {
        self.caller(headers, &Method::GET)?.view()
    }

    /// Makes a code that starts a session of the caller.
    pub(super) fn session_code(&self, headers: &HeaderMap) -> Result<String, ApiError> {
        let owner = self.caller(headers, &Method::POST)?.signed_in()?;
        let code = self.sessions.new_code(owner, self.keys.now_ms());
        code.map_err(|e| ApiError::internal(&e))
    }
}

impl Caller {
    fn admin() -> Self {
        Self {
            role: Role::Admin,
            name: ADMIN_NAME.to_owned(),
            owner: Some(Owner::AdminToken),
            session_ends_ms: None,
        }
    }

    fn agent(role: Role) -> Self {
        Self {
            role,
            name: String::new(),
            owner: None,
            session_ends_ms: None,
        }
    }

    /// Returns the caller as the audit log names it.
    fn actor(&self, address: IpAddr) -> AuditActor {
        AuditActor {
            name: self.name.clone(),
            key_id: match &self.owner {
                Some(Owner::Key { id, .. }) => Some(id.clone()),
                Some(Owner::AdminToken) | None => None,
            },
            session: self.session_ends_ms.is_some(),
            address: Some(address.to_string()),
        }
    }

    /// Returns the owner of a session of this caller, who must at least be allowed to read.
    fn signed_in(&self) -> Result<Owner, ApiError> {
        self.scope()?;
        self.owner.clone().ok_or_else(|| self.role.refusal())
    }

    fn scope(&self) -> Result<SessionScope, ApiError> {
        match self.role {
            Role::Admin => Ok(SessionScope::Admin),
            Role::Reader => Ok(SessionScope::Read),
            Role::Client | Role::Agent | Role::Node(_) => Err(self.role.refusal()),
        }
    }

    fn view(self) -> Result<SessionView, ApiError> {
        Ok(SessionView {
            scope: self.scope()?,
            name: self.name,
            expires_at_ms: self.session_ends_ms,
            grafana_url: None,
        })
    }
}

impl From<KeyOwner> for Caller {
    fn from(owner: KeyOwner) -> Self {
        Self {
            role: match owner.scope {
                AdminScope::Admin => Role::Admin,
                AdminScope::Read => Role::Reader,
                AdminScope::None => Role::Client,
            },
            name: owner.name,
            owner: Some(Owner::Key {
                id: owner.id,
                secret: owner.secret,
            }),
            session_ends_ms: None,
        }
    }
}

impl Role {
    /// Returns the refusal of a route for the admin.
    fn refusal(&self) -> ApiError {
        let given = match self {
            Self::Reader => "a key with the scope read",
            Self::Client => "a key without that scope",
            _ => "an agent token",
        };
        let message = format!(
            "this route requires the admin token or a key with the scope admin; {given} was given"
        );
        ApiError::new(StatusCode::FORBIDDEN, message)
    }
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// Middleware that accepts the admin, whom the handler gets as an [`AuditActor`], and readers where nothing is changed.
pub(super) async fn admin_only(
    State(credentials): State<Credentials>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match credentials.caller(request.headers(), request.method()) {
        Ok(caller) => caller,
        Err(e) => return e.into_response(),
    };
    if caller.role != Role::Client {
        set_known(&request);
    }
    match caller.role {
        Role::Admin => {
            let actor = caller.actor(source(request.extensions()));
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Role::Reader if only_reads(&request) => next.run(request).await,
        role => role.refusal().into_response(),
    }
}

/// Returns true if a request changes nothing and is answered with no secret.
fn only_reads(request: &Request) -> bool {
    match request.uri().path() {
        BACKUP => false,
        PREVIEW => true,
        _ => request.method().is_safe(),
    }
}

/// Returns the address that a request comes from; that of nobody if it is unknown.
pub(super) fn source(extensions: &Extensions) -> IpAddr {
    let address = extensions.get::<ConnectInfo<SocketAddr>>();
    let unknown = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    address.map_or(unknown, |ConnectInfo(address)| address.ip().to_canonical())
}

/// Middleware that accepts the admin, whom the handler gets as an [`AuditActor`], and agents. The role decides first; on a path with a node, an agent's token must be one for this node.
pub(super) async fn agent_or_admin(
    State(credentials): State<Credentials>,
    parameters: RawPathParams,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match credentials.caller(request.headers(), request.method()) {
        Ok(caller) => caller,
        Err(e) => return e.into_response(),
    };
    let role = &caller.role;
    let mut parameters = parameters.iter();
    let node = parameters.find(|(name, _)| *name == "node");
    if let Some(refusal) = credentials.refusal(role, node.map(|(_, node)| node)) {
        return ApiError::new(StatusCode::FORBIDDEN, refusal).into_response();
    }
    set_known(&request);
    if *role == Role::Admin {
        let actor = caller.actor(source(request.extensions()));
        request.extensions_mut().insert(actor);
    }
    next.run(request).await
}

/// Has the connection of a request keep its place.
fn set_known(request: &Request) {
    if let Some(mark) = request.extensions().get::<ClientMark>() {
        mark.set_known();
    }
}

/// Returns the token of `Authorization: Bearer TOKEN`. The case of the scheme does not matter.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    bearer_of(headers.get(header::AUTHORIZATION)?)
}

/// Returns the token of the value of an `Authorization` header.
pub(crate) fn bearer_of(authorization: &HeaderValue) -> Option<&str> {
    let value = authorization.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns the value of the session's cookie.
fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == SESSION_COOKIE).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Tasks;

    async fn role(authorization: &str) -> Option<Role> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        let caller = credentials().await.caller(&headers, &Method::GET);
        caller.ok().map(|caller| caller.role)
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    async fn credentials() -> Credentials {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store.db")).await.unwrap();
        let keys = Keyring::open(store, &Tasks::default()).await.unwrap();
        let hash = Sha256::digest("token-of-n").into();
        let nodes = BTreeMap::from([(node("n"), hash)]);
        Credentials::new(
            "admin-secret",
            "agent-secret",
            nodes,
            keys,
            EndedSessions::default(),
            LinkSecret::none(),
        )
    }

    #[tokio::test]
    async fn a_node_with_a_token_of_its_own_is_leased_with_it_only_and_it_leases_no_other() {
        let credentials = credentials().await;
        let allowed = |role: Role, node| credentials.refusal(&role, Some(node)).is_none();
        assert!(allowed(Role::Admin, "n") && allowed(Role::Admin, "m"));
        assert!(allowed(Role::Node(node("n")), "n"));
        assert!(!allowed(Role::Node(node("n")), "m"));
        assert!(!allowed(Role::Agent, "n"));
        assert!(!allowed(Role::Reader, "n") && !allowed(Role::Client, "m"));
        assert!(allowed(Role::Agent, "m"));
        let anywhere = |role: Role| credentials.refusal(&role, None).is_none();
        assert!(anywhere(Role::Admin) && anywhere(Role::Agent) && anywhere(Role::Node(node("n"))));
        assert!(!anywhere(Role::Reader) && !anywhere(Role::Client));
    }

    #[tokio::test]
    async fn each_token_has_its_role_and_nothing_else_is_a_token() {
        assert_eq!(role("Bearer admin-secret").await, Some(Role::Admin));
        assert_eq!(role("bearer agent-secret").await, Some(Role::Agent));
        assert_eq!(role("Bearer token-of-n").await, Some(Role::Node(node("n"))));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer admin-secre",
            "Bearer admin-secret x",
            "Bearer\tadmin-secret",
            "Basic admin-secret",
            "admin-secret",
        ] {
            assert_eq!(role(bad).await, None, "{bad:?} was accepted");
        }
    }
}
