//! The `tcp` back end in this kernel: real connections on the loopback device of a network namespace that each test
//! has to itself. Without root the errors that say so are tested alone.

use kuroshio_core::units::BitRate;
use kuroshio_pace::{
    Applied, Backend, Mode, PaceError, Request, Rule, Shown, Step, Wish, apply, clear, rules_from_toml, show,
};
use kuroshio_sock::{Framing, TcpInfo, tcp_info};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Only a hang lasts so long.
const LONG: Duration = Duration::from_secs(30);
/// What a child of `a_killed_apply_leaves_what_clear_takes_back` is told by.
const KILL_AT: &str = "KUROSHIO_PACE_KILL_AT";
const STATE: &str = "KUROSHIO_PACE_STATE";
const GROUP: &str = "KUROSHIO_PACE_GROUP";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a test in a thread with a network namespace of its own, whose loopback device has an MTU of 1500.
fn alone(test: impl FnOnce(&Path) + Send + 'static) {
    if !is_root() {
        println!("BPF needs root: not run");
        return;
    }
    let run = move || {
        // SAFETY: CLONE_NEWNET changes the calling thread's network namespace alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        sh("ip link set dev lo mtu 1500 up");
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("pace.json");
        // A program on a control group outlives the test that put it there: not when it fails, either.
        let _guard = Cleared(path.clone());
        test(&path);
    };
    let thread = std::thread::spawn(run);
    if let Err(e) = thread.join() {
        std::panic::resume_unwind(e);
    }
}

struct Cleared(PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        if self.0.exists() {
            let _ = clear(&self.0);
        }
    }
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().expect("sh");
    assert!(status.success(), "{script}: {status}");
}

/// A control group that goes with the test.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let info = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let line = info.lines().find(|l| l.contains(" - cgroup2 ")).expect("cgroup2");
        let root = PathBuf::from(line.split(' ').nth(4).expect("mount point"));
        let path = root.join(format!("kuroshio-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("control group");
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + LONG;
        // Busy until its last process was waited for.
        while self.0.exists() && std::fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rule(to: &str, port: Option<u16>, rate_bps: u64) -> Rule {
    Rule {
        to: Some(to.parse().expect("prefix")),
        port,
        cgroup: None,
        rate_bps,
        mode: Mode::Static,
    }
}

fn put(path: &Path, rules: Vec<Rule>) -> Result<Applied, PaceError> {
    let request = Request {
        wish: Wish::Only(Backend::Tcp),
        dev: None,
        rules,
    };
    apply(&request, path, &mut |_, _| {})
}

fn listen(at: impl Into<std::net::IpAddr>) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((at.into(), 0)).expect("listen");
    let address = listener.local_addr().expect("address");
    (listener, address)
}

/// A connection: the end that connected, and the other.
fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().expect("address");
    let near = TcpStream::connect_timeout(&to, LONG).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(LONG)).expect("timeout");
        stream.set_write_timeout(Some(LONG)).expect("timeout");
    }
    (near, far)
}

fn info(stream: &TcpStream) -> TcpInfo {
    tcp_info(stream).expect("TCP_INFO")
}

fn told(stream: &TcpStream) -> u64 {
    info(stream).max_pacing_rate_bytes_per_s
}

/// What host/sock makes of a rate for the same connection.
fn expected(stream: &TcpStream, rate_bps: u64) -> u64 {
    framing(stream).payload_bytes_per_s(BitRate::new(rate_bps).expect("a rate"))
}

fn framing(stream: &TcpStream) -> Framing {
    let ipv6 = kuroshio_sock::is_ipv6(stream).expect("a family");
    info(stream).framing(ipv6).expect("a segment size")
}

/// Frame-level bit/s that arrive in a second, after what arrives in the first half second.
fn arriving(mut from: TcpStream, mut to: TcpStream) -> f64 {
    let framing = framing(&from);
    let sender = std::thread::spawn(move || {
        let block = vec![7; 64 << 10];
        while from.write_all(&block).is_ok() {}
    });
    let mut buf = vec![0; 256 << 10];
    let mut read_for = |time: Duration| {
        let (begun, mut bytes) = (Instant::now(), 0u64);
        while begun.elapsed() < time {
            bytes += to.read(&mut buf).expect("data") as u64;
        }
        (bytes, begun.elapsed())
    };
    read_for(Duration::from_millis(500));
    let (bytes, time) = read_for(Duration::from_secs(1));
    drop(to);
    sender.join().expect("sender");
    framing.frame_bytes(bytes) as f64 * 8.0 / time.as_secs_f64()
}

#[test]
fn connections_to_a_prefix_are_paced_and_get_back_what_they_had() {
    alone(|path| {
        let (paced, to) = listen(Ipv4Addr::LOCALHOST);
        let (free, _) = listen(Ipv4Addr::LOCALHOST);
        let (before, _before) = connect(&paced);
        let rate = 50_000_000;
        let done = put(path, vec![rule("127.0.0.0/8", Some(to.port()), rate)]).expect("applied");
        assert_eq!(done.choice.backend, Backend::Tcp);
        assert!(done.cannot.iter().any(|c| c.contains("each connection's own")));
        assert!(matches!(put(path, vec![rule("::/0", None, rate)]), Err(e) if e.is_bad_input()));
        // Exactly what host/sock tells a socket for the same rate.
        let (near, far) = connect(&paced);
        assert_eq!(told(&near), expected(&near, rate));
        let (other, _other) = connect(&free);
        assert_eq!(told(&other), u64::MAX);
        assert_eq!(told(&before), u64::MAX, "made before");
        // The other end's far port is another one.
        assert_eq!(told(&far), u64::MAX);
        let shown = show(path).expect("state").expect("in force");
        assert_eq!(shown.rules[0].connections, Some(1));
        assert!(shown.whole && shown.lost.is_empty(), "{shown:?}");
        let measured = arriving(near.try_clone().expect("clone"), far) / rate as f64;
        println!("arrives at {measured:.4} of the rate");
        assert!((0.93..1.02).contains(&measured), "{measured}");
        let (mine, _mine) = connect(&paced);
        assert_eq!(clear(path).expect("cleared").len(), 1);
        assert_eq!(told(&mine), u64::MAX, "what it had before");
        let (after, _after) = connect(&paced);
        assert_eq!(told(&after), u64::MAX);
        assert!(!path.exists());
        assert_eq!(show(path).expect("state"), None);
        assert!(matches!(clear(path), Err(e) if e.is_bad_input()));
    });
}

#[test]
fn the_first_rule_that_matches_holds_in_both_families() {
    alone(|path| {
        let (v4, to) = listen(Ipv4Addr::LOCALHOST);
        let (v6, _) = listen(Ipv6Addr::LOCALHOST);
        let rules = vec![
            rule("127.0.0.1/32", Some(to.port()), 10_000_000),
            rule("127.0.0.0/8", None, 20_000_000),
            rule("::1/128", None, 30_000_000),
        ];
        put(path, rules).expect("applied");
        let (near4, far4) = connect(&v4);
        assert_eq!(told(&near4), expected(&near4, 10_000_000));
        assert_eq!(told(&far4), expected(&far4, 20_000_000));
        let (near6, _far6) = connect(&v6);
        assert_eq!(told(&near6), expected(&near6, 30_000_000));
        // An IPv6 socket to a mapped address sends IPv4.
        let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), to.port()));
        let mixed = TcpStream::connect_timeout(&mapped, LONG).expect("connect");
        assert_eq!(told(&mixed), expected(&mixed, 10_000_000));
        let shown = show(path).expect("state").expect("in force");
        let counts: Vec<_> = shown.rules.iter().map(|r| r.connections).collect();
        // The mapped connection's other end is 127.0.0.1 too.
        assert_eq!(counts[0], Some(2));
        assert!(counts[1] >= Some(1) && counts[2] == Some(2), "{counts:?}");
    });
}

#[test]
fn another_namespace_is_left_alone_and_a_lower_rate_of_the_program_s_own_holds() {
    alone(|path| {
        put(path, vec![rule("127.0.0.0/8", None, 50_000_000)]).expect("applied");
        let (listener, _) = listen(Ipv4Addr::LOCALHOST);
        let (near, mut far) = connect(&listener);
        let rate = BitRate::new(20_000_000);
        let set = kuroshio_sock::set_pacing(&near, rate).expect("set");
        // A round trip of data, after which the program has looked at the socket again.
        let mut out = near.try_clone().expect("clone");
        for _ in 0..20 {
            out.write_all(&[1; 5000]).expect("write");
            far.read_exact(&mut [0; 5000]).expect("read");
        }
        assert_eq!(told(&near), set.payload_bytes_per_s);
        let elsewhere = std::thread::spawn(|| {
            // SAFETY: CLONE_NEWNET changes the calling thread's network namespace alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            sh("ip link set dev lo up");
            let (listener, _) = listen(Ipv4Addr::LOCALHOST);
            let (near, _far) = connect(&listener);
            told(&near)
        });
        assert_eq!(elsewhere.join().expect("no panic"), u64::MAX);
    });
}

#[test]
fn a_dynamic_rule_follows_the_window() {
    alone(|path| {
        let bound = 34_000_000_000;
        let mut dynamic = rule("127.0.0.0/8", None, bound);
        dynamic.mode = Mode::Dynamic;
        put(path, vec![dynamic]).expect("applied");
        let (listener, _) = listen(Ipv4Addr::LOCALHOST);
        let (near, mut far) = connect(&listener);
        let mut out = near.try_clone().expect("clone");
        let end = Instant::now() + LONG;
        loop {
            out.write_all(&[1; 5000]).expect("write");
            far.read_exact(&mut [0; 5000]).expect("read");
            let i = info(&near);
            // cwnd * payload / RTT, of values that change while they are looked at: to a factor of 4.
            let window = f64::from(i.cwnd_segments) * f64::from(i.snd_mss) * 1e6 / f64::from(i.rtt_us.max(1));
            let now = i.max_pacing_rate_bytes_per_s as f64;
            if i.max_pacing_rate_bytes_per_s != expected(&near, bound)
                && (0.25..4.0).contains(&(now / window))
            {
                break;
            }
            assert!(Instant::now() < end, "told {now}, the window is {window}");
        }
    });
}

#[test]
fn processes_of_a_control_group_are_paced_and_others_are_not() {
    alone(|path| {
        let group = Group::new("paced");
        let rate = 50_000_000;
        let mut rule = rule("127.0.0.0/8", None, rate);
        rule.cgroup = Some(group.0.clone());
        put(path, vec![rule]).expect("applied");
        let (listener, to) = listen(Ipv4Addr::LOCALHOST);
        let (near, _far) = connect(&listener);
        assert_eq!(told(&near), u64::MAX, "not of the group");
        let script = format!(
            "echo $$ >{}/cgroup.procs; exec 3<>/dev/tcp/127.0.0.1/{}; exec cat /dev/zero >&3",
            group.0.display(),
            to.port()
        );
        let child = Command::new("bash").args(["-c", &script]).spawn().expect("bash");
        let running = Running(child);
        let (mut far, _) = listener.accept().expect("accept");
        far.set_read_timeout(Some(LONG)).expect("timeout");
        let framing = framing(&far);
        let mut buf = vec![0; 256 << 10];
        let mut read_for = |time: Duration| {
            let (begun, mut bytes) = (Instant::now(), 0u64);
            while begun.elapsed() < time {
                bytes += far.read(&mut buf).expect("data") as u64;
            }
            framing.frame_bytes(bytes) as f64 * 8.0 / begun.elapsed().as_secs_f64()
        };
        read_for(Duration::from_millis(500));
        let measured = read_for(Duration::from_secs(1)) / rate as f64;
        println!("arrives at {measured:.4} of the rate");
        assert!((0.93..1.02).contains(&measured), "{measured}");
        let shown: Shown = show(path).expect("state").expect("in force");
        assert_eq!(shown.rules[0].connections, Some(1));
        // A group that is removed takes its program along: `show` says so, and `clear` has nothing left to do.
        drop(running);
        drop(far);
        drop(group);
        let end = Instant::now() + LONG;
        while show(path).expect("state").expect("state").lost.is_empty() {
            assert!(Instant::now() < end, "the program outlives its group");
            std::thread::yield_now();
        }
        clear(path).expect("cleared");
        assert!(!path.exists());
    });
}

#[test]
fn a_step_that_fails_takes_the_others_back() {
    alone(|path| {
        let group = Group::new("gone");
        let mut second = rule("127.0.0.0/8", None, 1_000_000);
        second.cgroup = Some(group.0.clone());
        let request = Request {
            wish: Wish::Only(Backend::Tcp),
            dev: None,
            rules: vec![rule("127.0.0.0/8", None, 50_000_000), second],
        };
        let (listener, _) = listen(Ipv4Addr::LOCALHOST);
        let mut held = None;
        let mut seen = 0;
        let e = apply(&request, path, &mut |step, made| {
            seen += 1;
            match step {
                Step::Program { cgroup, .. } if *cgroup == group.0 && !made => {
                    std::fs::remove_dir(&group.0).expect("removed");
                }
                _ if made => held = Some(connect(&listener)),
                _ => {}
            }
        })
        .expect_err("the group is gone");
        assert!(
            !e.is_bad_input() && e.to_string().contains("kuroshio-test"),
            "{e}"
        );
        assert_eq!(seen, 3, "one made, one written down");
        let (near, _far) = held.expect("a connection while the first was in force");
        assert_eq!(told(&near), u64::MAX, "taken back");
        let (near, _far) = connect(&listener);
        assert_eq!(told(&near), u64::MAX);
        assert!(!path.exists());
    });
}

/// Not a test of its own: the process that is killed.
#[test]
fn child_that_is_killed() {
    let Ok(at) = std::env::var(KILL_AT) else { return };
    let path = PathBuf::from(std::env::var_os(STATE).expect("state"));
    let mut second = rule("127.0.0.0/8", None, 40_000_000);
    second.cgroup = Some(std::env::var_os(GROUP).expect("group").into());
    let request = Request {
        wish: Wish::Only(Backend::Tcp),
        dev: None,
        rules: vec![rule("127.0.0.0/8", None, 50_000_000), second],
    };
    let mut left: u32 = at.parse().expect("a number");
    let done = apply(&request, &path, &mut |_, _| {
        if left == 0 {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).expect("killed");
        }
        left -= 1;
    });
    panic!("not killed: {done:?}");
}

#[test]
fn a_killed_apply_leaves_what_clear_takes_back() {
    alone(|path| {
        let group = Group::new("killed");
        let (listener, _) = listen(Ipv4Addr::LOCALHOST);
        let exe = std::env::current_exe().expect("this program");
        for at in 0..4 {
            let status = Command::new(&exe)
                .args(["--exact", "child_that_is_killed"])
                .env(KILL_AT, at.to_string())
                .env(STATE, path)
                .env(GROUP, &group.0)
                .stdout(std::process::Stdio::null())
                .status()
                .expect("started");
            assert_eq!(
                std::os::unix::process::ExitStatusExt::signal(&status),
                Some(9),
                "{at}: {status}"
            );
            let shown = show(path).expect("state").expect("a state");
            assert!(!shown.whole, "{at}: {shown:?}");
            // Written down and not made is seen as lost.
            assert_eq!(shown.lost.len(), usize::from(at % 2 == 0), "{at}: {shown:?}");
            let (near, _far) = connect(&listener);
            assert_eq!(told(&near) == u64::MAX, at == 0, "{at}");
            let e = put(path, vec![rule("::/0", None, 1_000_000)]).expect_err("half in force");
            assert!(e.is_bad_input() && e.to_string().contains("half in force"), "{e}");
            clear(path).expect("cleared");
            assert!(!path.exists());
            assert_eq!(told(&near), u64::MAX, "{at}");
            let (near, _far) = connect(&listener);
            assert_eq!(told(&near), u64::MAX, "{at}");
        }
    });
}

#[test]
fn a_back_end_that_is_not_there_is_an_error() {
    alone(|path| {
        for backend in [Backend::Psp, Backend::Fq] {
            let request = |dev: Option<&str>| Request {
                wish: Wish::Only(backend),
                dev: dev.map(str::to_owned),
                rules: rules_from_toml("[[rule]]\nrate = \"1G\"").expect("rules"),
            };
            let e = apply(&request(None), path, &mut |_, _| {}).expect_err("no interface");
            assert!(e.is_bad_input(), "{e}");
            let e = apply(&request(Some("none9")), path, &mut |_, _| {}).expect_err("no interface");
            assert!(e.is_bad_input() && e.to_string().contains("none9"), "{e}");
            // Another's qdisc is in the way, whatever this kernel has.
            sh("tc qdisc replace dev lo root handle 7: tbf rate 1gbit burst 1mb latency 10ms");
            let e = apply(&request(Some("lo")), path, &mut |_, _| {}).expect_err("a tbf");
            assert!(
                e.is_bad_input() && e.to_string().contains("lo has tbf 7: at its root"),
                "{e}"
            );
            sh("tc qdisc del dev lo root");
        }
        assert!(!path.exists());
        let group = Rule {
            cgroup: Some("/sys/fs/cgroup/kuroshio-none".into()),
            ..rule("::/0", None, 1_000_000)
        };
        let e = put(path, vec![group]).expect_err("no group");
        assert!(e.is_bad_input() && e.to_string().contains("cgroup.procs"), "{e}");
    });
}
