//! What another receiver of RFC 4175 needs to know of a part (RFC 4175, section 6; SDP, RFC 8866).
//!
//! `gst-launch-1.0 filesrc location=part.sdp ! sdpdemux ! rtpvrawdepay ! videoconvert ! autovideosink`,
//! `ffplay -protocol_whitelist file,udp,rtp part.sdp`.

use std::net::SocketAddr;

use kuroshio_core::video::{Geometry, RTP_HZ, Sampling};

use crate::PAYLOAD_TYPE;

/// The description of a part that is sent to `to`.
#[must_use]
pub fn sdp(part: Geometry, rate: (u32, u32), to: SocketAddr, name: &str) -> String {
    let sampling = match part.format().sampling() {
        Sampling::Rgb => "RGB",
        Sampling::Yuv444 => "YCbCr-4:4:4",
        Sampling::Yuv422 => "YCbCr-4:2:2",
        Sampling::Yuv420 => "YCbCr-4:2:0",
    };
    let kind = if to.is_ipv4() { "IP4" } else { "IP6" };
    let (ip, port) = (to.ip(), to.port());
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let fps = if rate.1 == 1 {
        rate.0.to_string()
    } else {
        format!("{}/{}", rate.0, rate.1)
    };
    format!(
        "v=0\r\no=- 0 0 IN {kind} {ip}\r\ns={name}\r\nc=IN {kind} {ip}\r\nt=0 0\r\nm=video {port} RTP/AVP {PAYLOAD_TYPE}\r\n\
         a=rtpmap:{PAYLOAD_TYPE} raw/{RTP_HZ}\r\n\
         a=fmtp:{PAYLOAD_TYPE} sampling={sampling}; width={}; height={}; depth={}; colorimetry=BT709-2; exactframerate={fps}\r\n",
        part.width(),
        part.height(),
        part.format().bits(),
    )
}
