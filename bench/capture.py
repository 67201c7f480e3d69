"""How even a flow was: payload bytes of one TCP port in windows of 10 ms, from a capture.

The capture keeps the first 96 bytes of every packet on the loopback device, enough for the
headers; lengths come from the IP header, or from the packet's own where that is 0 (a packet of
more than 64 KiB).
"""

import statistics
import struct

WINDOW_S = 0.01
# The first second is judged apart: slow start and filling buckets are in it.
FIRST_S = 1.0
# Windows left out at the end, where the flow ends within a window.
LAST_WINDOWS = 2

GLOBAL_HEADER = 24
PACKET_HEADER = struct.Struct("<IIII")
# Bytes before the IP header, by the capture's link type: Ethernet, cooked, cooked 2.
LINK_BYTES = {1: 14, 113: 16, 276: 20}


def payloads(path, port, way):
    """Yields (seconds, payload bytes) of the packets sent from ("src") or to ("dst") `port`."""
    with open(path, "rb") as file:
        header = file.read(GLOBAL_HEADER)
        if len(header) < GLOBAL_HEADER:
            return
        magic, = struct.unpack_from("<I", header)
        fraction = 1e-9 if magic == 0xA1B23C4D else 1e-6
        link, = struct.unpack_from("<I", header, 20)
        skip = LINK_BYTES[link & 0xFFFF]
        while len(head := file.read(PACKET_HEADER.size)) == PACKET_HEADER.size:
            seconds, part, kept, whole = PACKET_HEADER.unpack(head)
            ip = file.read(kept)[skip:]
            if len(ip) < 40 or ip[0] >> 4 != 4 or ip[9] != 6:
                continue
            ip_header = (ip[0] & 15) * 4
            total = struct.unpack_from(">H", ip, 2)[0] or whole - skip
            ports = struct.unpack_from(">HH", ip, ip_header)
            length = total - ip_header - (ip[ip_header + 12] >> 4) * 4
            if length > 0 and ports[0 if way == "src" else 1] == port:
                yield seconds + part * fraction, length


def evenness(path, port, way):
    """MB/s achieved and the spread of 10 ms windows, or None when nothing was captured."""
    packets = list(payloads(path, port, way))
    if not packets:
        return None
    begin = packets[0][0]
    last = packets[-1][0] - begin
    windows = [0] * (int(last / WINDOW_S) + 1)
    for stamp, length in packets:
        windows[int((stamp - begin) / WINDOW_S)] += length
    first = int(FIRST_S / WINDOW_S)
    steady = windows[first:len(windows) - LAST_WINDOWS]
    if len(steady) < 2 or sum(steady) == 0:
        return None
    mean = statistics.fmean(steady)
    return {
        "mb_per_s": round(mean / WINDOW_S / 1e6, 2),
        "first_second_mb_per_s": round(sum(windows[:first]) / FIRST_S / 1e6, 2),
        "peak_10ms": round(max(steady) / mean, 2),
        "empty_10ms_share": round(sum(1 for w in steady if w == 0) / len(steady), 3),
        "variation_10ms": round(statistics.pstdev(steady) / mean, 3),
    }
