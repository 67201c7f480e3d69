//! TCP sockets with pacing rate, congestion control and TCP_INFO.
