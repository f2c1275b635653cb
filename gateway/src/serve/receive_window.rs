//! The bytes that a client may send before the gateway has read any of them.
//!
//! Linux begins with 64 KiB for a connection and widens that while a client sends much. Until then an image of 0.6 MB comes in ten parts, for each of
//! which the client waits. Many clients of one gateway send less each, and wait so for seconds.

use std::{io, os::fd::AsFd};

use nix::{
    libc, setsockopt_impl,
    sys::socket::{setsockopt, sockopt::SetUsize},
};

/// The window in bytes, which has room for an image of 0.6 MB and its head.
const RECEIVE_WINDOW: usize = 1 << 20;

/// The fewest bytes of which a reader is told.
#[derive(Clone, Copy)]
struct ReceiveLowWater;

setsockopt_impl!(
    ReceiveLowWater,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    usize,
    SetUsize
);

/// Widens the window of all connections that a listener will accept. The system may widen it further.
///
/// `SO_RCVBUF` would set the size of the buffer for good. `SO_RCVLOWAT` makes it large enough for the bytes that a reader waits for, and it keeps
/// its size when the reader waits for one byte again (`tcp_set_rcvlowat` of Linux).
///
/// # Errors
/// The system refuses the option.
pub(super) fn widen(listener: &impl AsFd) -> io::Result<()> {
    setsockopt(listener, ReceiveLowWater, &RECEIVE_WINDOW)?;
    setsockopt(listener, ReceiveLowWater, &1)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use nix::sys::socket::{getsockopt, sockopt::RcvBuf};

    use super::*;

    #[test]
    fn accepted_connections_have_room_for_the_window_and_are_told_of_each_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        widen(&listener).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        assert!(getsockopt(&accepted, RcvBuf).unwrap() >= RECEIVE_WINDOW);
        client.write_all(b"x").unwrap();
        assert_eq!(accepted.read(&mut [0; 8]).unwrap(), 1);
    }
}
