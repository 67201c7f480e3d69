//! Length-delimited messages: 4 bytes of length, big endian, then a protobuf message.
//!
//! A length above [`MAX_FRAME_BYTES`] is refused before anything is reserved for it; the buffer grows with
//! the bytes that have come, so a peer that announces much and sends little costs little.

use std::io;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Largest message, bytes.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// Bytes reserved before any of a message has come.
const FIRST_BYTES: usize = 16 * 1024;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection broke or ended inside a frame.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Larger than [`MAX_FRAME_BYTES`].
    #[error("a message of {0} bytes; at most {MAX_FRAME_BYTES} are valid")]
    TooLarge(usize),
    /// Not such a message.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Reads one message; `None` when the peer has ended the connection between two.
///
/// # Errors
/// See [`FrameError`]; the connection is of no use afterwards.
pub async fn read<M: Message + Default>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<M>, FrameError> {
    let mut head = [0; 4];
    let first = from.read(&mut head[..1]).await?;
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..]).await?;
    let len = u32::from_be_bytes(head) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge(len));
    }
    let mut bytes = Vec::with_capacity(len.min(FIRST_BYTES));
    let got = from.take(len as u64).read_to_end(&mut bytes).await?;
    if got < len {
        return Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Some(M::decode(bytes.as_slice())?))
}

/// Takes the message that `bytes` begins with: it, and how many bytes it was of. `None` as long as it is not whole.
///
/// # Errors
/// [`FrameError::TooLarge`] as soon as its length is there, [`FrameError::Malformed`]; the connection is of no use
/// afterwards.
pub fn split<M: Message + Default>(bytes: &[u8]) -> Result<Option<(M, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes(*head) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge(len));
    }
    match rest.get(..len) {
        None => Ok(None),
        Some(message) => Ok(Some((M::decode(message)?, head.len() + len))),
    }
}

/// Appends one message to `out`.
///
/// # Errors
/// [`FrameError::TooLarge`]; `out` is as before.
pub fn append(out: &mut Vec<u8>, message: &impl Message) -> Result<(), FrameError> {
    let len = message.encoded_len();
    let head = u32::try_from(len)
        .ok()
        .filter(|_| len <= MAX_FRAME_BYTES)
        .ok_or(FrameError::TooLarge(len))?;
    out.extend_from_slice(&head.to_be_bytes());
    // A vector never runs out of room.
    let _ = message.encode(out);
    Ok(())
}

/// Writes one message.
///
/// # Errors
/// See [`FrameError`].
pub async fn write(to: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> Result<(), FrameError> {
    let mut bytes = Vec::new();
    append(&mut bytes, message)?;
    to.write_all(&bytes).await?;
    to.flush().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{ClientFrame, PathRequest, Request, client_frame, request};
    use proptest::prelude::*;

    fn frame(number: u64, path: &[u8]) -> ClientFrame {
        let op = request::Op::Stat(PathRequest {
            path: path.to_vec(),
            ..PathRequest::default()
        });
        ClientFrame {
            number,
            body: Some(client_frame::Body::Request(Request {
                op: Some(op),
                context: None,
            })),
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("runtime");
        runtime.block_on(work)
    }

    #[test]
    fn frames_come_back_in_order() {
        let mut bytes = Vec::new();
        for n in 0..3 {
            append(&mut bytes, &frame(n, b"/a")).expect("fits");
        }
        let mut from = bytes.as_slice();
        for n in 0..3 {
            assert_eq!(
                run(read::<ClientFrame>(&mut from)).expect("good"),
                Some(frame(n, b"/a"))
            );
        }
        assert!(run(read::<ClientFrame>(&mut from)).expect("end").is_none());
        let mut left = bytes.as_slice();
        for n in 0..3 {
            let mut one = Vec::new();
            append(&mut one, &frame(n, b"/a")).expect("fits");
            for cut in 0..one.len() {
                let part = left.get(..cut).expect("inside");
                assert!(
                    split::<ClientFrame>(part).expect("good so far").is_none(),
                    "{cut}"
                );
            }
            let (message, used) = split::<ClientFrame>(left).expect("good").expect("whole");
            assert_eq!(message, frame(n, b"/a"));
            left = left.get(used..).expect("inside");
        }
        assert!(left.is_empty());
    }

    #[test]
    fn too_long_and_cut_frames_are_refused() {
        let long = frame(1, &vec![b'x'; MAX_FRAME_BYTES]);
        let mut out = vec![9];
        assert!(matches!(append(&mut out, &long), Err(FrameError::TooLarge(_))));
        assert_eq!(out, [9]);
        let mut huge: &[u8] = &[0xff, 0xff, 0xff, 0xff, 1];
        assert!(matches!(
            run(read::<ClientFrame>(&mut huge)),
            Err(FrameError::TooLarge(_))
        ));
        assert!(matches!(
            split::<ClientFrame>(&[0xff; 4]),
            Err(FrameError::TooLarge(_))
        ));
        let mut good = Vec::new();
        append(&mut good, &frame(1, b"/a")).expect("fits");
        for cut in 1..good.len() {
            let mut part = good.get(..cut).expect("inside");
            assert!(
                matches!(run(read::<ClientFrame>(&mut part)), Err(FrameError::Io(_))),
                "{cut}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
            framed.extend_from_slice(&bytes);
            for bytes in [framed, bytes] {
                let read = run(read::<ClientFrame>(&mut bytes.as_slice())).ok().flatten();
                let split = split::<ClientFrame>(&bytes).ok().flatten();
                prop_assert_eq!(split.map(|(message, _)| message), read);
            }
        }
    }
}
