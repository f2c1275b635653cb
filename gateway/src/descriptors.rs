//! The process's file descriptors: as many as the system allows, divided between connections and everything else.

use packhorse_service::raise_descriptor_limit;

use crate::serve::OVERFLOW_CONNECTIONS;

/// The fewest descriptors for links to workers, the store, model files and the log.
const RESERVE_MIN: u64 = 64;
/// The most descriptors for the same.
const RESERVE_MAX: u64 = 4096;

/// The largest numbers of connections for which there are descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionShares {
    /// The connections of the inference listener.
    pub(crate) inference: usize,
    /// The connections of the gRPC listener.
    pub(crate) grpc: usize,
    /// The connections of the admin listener.
    pub(crate) admin: usize,
}

/// The most connections of the gRPC listener: each has many requests at a time, and may have as many bytes in memory as its window has.
pub(crate) const GRPC_CONNECTIONS: usize = 1024;

/// Raises the soft limit of descriptors to the hard one, and divides them; each listener gets at most `wanted` connections.
pub(crate) fn raise_and_divide(wanted: usize) -> ConnectionShares {
    let limit = raise_descriptor_limit();
    let shares = divide(limit, wanted);
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    if shares.inference < wanted || shares.admin < wanted {
        tracing::warn!(
            descriptors = shown,
            connections.wanted = wanted,
            connections.inference = shares.inference,
            connections.grpc = shares.grpc,
            connections.admin = shares.admin,
            "the hard limit of file descriptors is too low for --max-connections: raise it (ulimit -Hn, LimitNOFILE=)"
        );
    } else {
        tracing::info!(
            descriptors = shown,
            connections.inference = shares.inference,
            connections.grpc = shares.grpc,
            connections.admin = shares.admin,
            "the limit of file descriptors allows all connections"
        );
    }
    shares
}

/// Divides descriptors: a quarter is reserved for everything that is no connection of a client, and an admin listener that gets
/// less than it wants has a quarter of the rest, and the gRPC listener an eighth.
fn divide(limit: Option<u64>, wanted: usize) -> ConnectionShares {
    let whole = ConnectionShares {
        inference: wanted,
        grpc: wanted.min(GRPC_CONNECTIONS),
        admin: wanted,
    };
    let Some(limit) = limit else { return whole };
    let reserve = (limit / 4).clamp(RESERVE_MIN, RESERVE_MAX) + 2 * OVERFLOW_CONNECTIONS as u64;
    let left = usize::try_from(limit.saturating_sub(reserve)).unwrap_or(usize::MAX);
    if left.saturating_sub(whole.grpc) / 2 >= wanted {
        return whole;
    }
    let admin = (left / 4).clamp(1, wanted);
    let grpc = (left / 8).clamp(1, whole.grpc);
    ConnectionShares {
        inference: left.saturating_sub(admin + grpc).clamp(1, wanted),
        grpc,
        admin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_links_store_and_admin() {
        for (limit, wanted, inference, grpc, admin) in [
            (None, 8192, 8192, 1024, 8192),
            (Some(1 << 20), 8192, 8192, 1024, 8192),
            (Some(4096), 8192, 1880, 376, 752),
            (Some(256), 8192, 80, 16, 32),
            (Some(256), 20, 20, 20, 20),
            (Some(10), 8192, 1, 1, 1),
        ] {
            let shares = divide(limit, wanted);
            let expected = ConnectionShares {
                inference,
                grpc,
                admin,
            };
            assert_eq!(shares, expected, "{limit:?}");
        }
    }
}
