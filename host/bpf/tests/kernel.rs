//! The programs in this kernel: they load, a connection uses them, and they end with their holder.

use kuroshio_bpf::{BpfError, available, load};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn has(name: &str) -> bool {
    available().expect("the kernel's list").iter().any(|n| n == name)
}

/// Sends through a connection under `name` and returns what arrived.
fn carry(name: &str, bytes: usize) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let mut out = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    kuroshio_sock::set_congestion(&out, name).expect("set");
    let (mut far, _) = listener.accept().expect("accept");
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).expect("read");
        got.len()
    });
    out.write_all(&vec![7; bytes]).expect("write");
    drop(out);
    reader.join().expect("no panic")
}

#[test]
fn each_is_there_as_long_as_it_is_held() {
    for name in kuroshio_bpf::NAMES {
        let before = has(name);
        let held = match load(name) {
            // Without the rights the error says what is needed; the rest cannot be seen then.
            Err(e @ BpfError::Load { .. }) if !is_root() => {
                assert!(e.to_string().contains("root"), "{e}");
                continue;
            }
            other => other.expect("loads"),
        };
        assert_eq!(held.is_none(), before, "{name}");
        assert!(has(name), "{name}");
        assert!(load(name).expect("is there").is_none());
        assert_eq!(carry(name, 4 << 20), 4 << 20);
        drop(held);
        assert_eq!(has(name), before, "{name}");
    }
    assert!(matches!(load("vegas"), Err(BpfError::Unknown(_))));
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}
