//! The passing of descriptors over a Unix socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, getsockopt, recvmsg, sendmsg,
        sockopt::PeerCredentials,
    },
};

/// The most descriptors that are passed at a time.
const MOST: usize = 3;

/// Returns the user that the process at the other end of a Unix socket ran as when it connected or listened.
///
/// # Errors
/// The socket is no Unix socket.
pub fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(getsockopt(&socket, PeerCredentials)?.uid())
}

/// Sends bytes with descriptors beside the first of them. Returns how many were sent: at least one.
///
/// # Errors
/// The socket is full, if it does not wait, or broken.
pub fn send_with_descriptors<const N: usize>(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: [BorrowedFd<'_>; N],
) -> io::Result<usize> {
    const { assert!(N <= MOST) };
    let descriptors = descriptors.map(|descriptor| descriptor.as_raw_fd());
    let sent = sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
    Ok(sent?)
}

/// Receives bytes, and the descriptors beside them if there are exactly so many. Returns how many bytes were received: zero at the end.
///
/// # Errors
/// Nothing is there, if the socket does not wait, or it is broken.
pub fn receive_with_descriptors<const N: usize>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<[OwnedFd; N]>)> {
    // The kernel closes those for which there is no room.
    let mut control = cmsg_space!([RawFd; MOST]);
    let mut slices = [IoSliceMut::new(bytes)];
    let message = recvmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut control),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made these descriptors for this process, and nothing else knows them.
            let own = |descriptor: RawFd| unsafe { OwnedFd::from_raw_fd(descriptor) };
            received.extend(descriptors.into_iter().map(own));
        }
    }
    Ok((message.bytes, received.try_into().ok()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn descriptors_arrive_with_their_bytes_in_their_order_or_not_at_all() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let pipes = [io::pipe().unwrap(), io::pipe().unwrap()];
        let readers = [pipes[0].0.as_fd(), pipes[1].0.as_fd()];
        assert_eq!(
            send_with_descriptors(one.as_fd(), b"ends", readers).unwrap(),
            4
        );
        let mut writers = pipes.map(|(_, writer)| writer);
        let mut bytes = [0; 9];
        let (length, received) = receive_with_descriptors::<2>(other.as_fd(), &mut bytes).unwrap();
        assert_eq!(bytes[..length], *b"ends");
        for (number, received) in received.unwrap().into_iter().enumerate() {
            writers[number].write_all(&[number as u8]).unwrap();
            let mut byte = [9];
            io::PipeReader::from(received)
                .read_exact(&mut byte)
                .unwrap();
            assert_eq!(byte, [number as u8]);
        }
        let number = [one.as_fd()];
        send_with_descriptors(one.as_fd(), b"one", number).unwrap();
        let (length, none) = receive_with_descriptors::<2>(other.as_fd(), &mut bytes).unwrap();
        assert_eq!((length, none.is_none()), (3, true));
        other.write_all(b"plain").unwrap();
        let (length, none) = receive_with_descriptors::<1>(one.as_fd(), &mut bytes).unwrap();
        assert_eq!((length, none.is_none()), (5, true));
        drop(other);
        let (length, none) = receive_with_descriptors::<1>(one.as_fd(), &mut bytes).unwrap();
        assert_eq!((length, none.is_none()), (0, true));
    }

    #[test]
    fn the_peer_of_a_pair_is_this_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(
            peer_uid(one.as_fd()).unwrap(),
            nix::unistd::geteuid().as_raw()
        );
    }
}
