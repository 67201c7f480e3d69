//! TLS connections in the form that the data mover takes.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::{Deref, DerefMut};

use kuroshio_transfer::{Conn, Stream};
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};

/// A blocking TLS connection with bytes that were read from it already.
struct TlsConn<C, S>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
    S: SideData,
{
    prefix: Vec<u8>,
    tls: StreamOwned<C, TcpStream>,
}

impl<C, S> Read for TlsConn<C, S>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
    S: SideData,
{
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.prefix.is_empty() {
            return self.tls.read(buf);
        }
        let n = self.prefix.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(self.prefix.drain(..n)) {
            *to = from;
        }
        Ok(n)
    }
}

impl<C, S> Write for TlsConn<C, S>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
    S: SideData,
{
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.tls.write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.tls.write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tls.flush()
    }
}

impl<C, S> Stream for TlsConn<C, S>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>> + Send,
    S: SideData + Send,
{
    fn tcp(&self) -> Option<&TcpStream> {
        Some(&self.tls.sock)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.tls.conn.send_close_notify();
        self.tls.flush()?;
        self.tls.sock.shutdown(Shutdown::Write)
    }
}

/// A client's TLS connection as a session's connection.
pub fn client_conn(tls: StreamOwned<ClientConnection, TcpStream>, prefix: Vec<u8>) -> Conn {
    Conn::other(TlsConn { prefix, tls })
}

/// A service's TLS connection as a session's connection.
pub fn server_conn(tls: ServerConnection, socket: TcpStream, prefix: Vec<u8>) -> Conn {
    Conn::other(TlsConn {
        prefix,
        tls: StreamOwned::new(tls, socket),
    })
}
