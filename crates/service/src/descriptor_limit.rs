//! The limit of this process's file descriptors.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Raises the soft limit of this process's file descriptors to the hard one, and returns it; `None` is no limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors cannot be read");
            return None;
        }
    };
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of file descriptors to the hard limit");
            soft
        }
    };
    (limit != RLIM_INFINITY).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let limit = raise_descriptor_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
        assert_eq!(limit.unwrap_or(RLIM_INFINITY), soft);
    }
}
