//! Operations of the arbiter in any order: no panic, and the sum of charges stays below the capacity unless
//! that has just fallen.

use super::Input;
use kuroshio_core::plan::{Arbiter, Config, LeaseId, Route, RouteId};
use kuroshio_core::units::{BitRate, PicoDuration, PicoTime, Ratio};

const ROUTES: u64 = 2;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let config = Config {
        ttl: PicoDuration::from_ms(100),
        guard: PicoDuration::from_ms(1),
        linger: PicoDuration::from_ms(500),
        instance: 1,
    };
    let mut arbiter = Arbiter::new(config, PicoTime::ZERO).expect("a time to live");
    let headroom = Ratio::new(3, 100).expect("a ratio");
    for _ in 0..ROUTES {
        let route = Route {
            capacity: BitRate::from_mbps(1000),
            headroom,
        };
        arbiter
            .add_route(route, BitRate::from_mbps(1), 16)
            .expect("floors fit");
    }
    let mut now = PicoTime::ZERO;
    // Until when the capacity may be exceeded, because it fell.
    let mut excused = [PicoTime::ZERO; ROUTES as usize];
    while input.more() {
        let route = RouteId(input.below(ROUTES + 1) as u32);
        let id = LeaseId {
            instance: 1 + u64::from(input.byte() == 255),
            number: input.below(40),
        };
        match input.byte() % 8 {
            0 | 1 => drop(arbiter.acquire(route, BitRate::new(input.number()).unwrap_or(BitRate::MAX), now)),
            2..=4 => drop(arbiter.renew(id, input.number(), now)),
            5 => drop(arbiter.release(id, now)),
            6 => {
                let capacity = BitRate::new(input.number()).unwrap_or(BitRate::MIN);
                if arbiter.set_capacity(route, capacity, now).is_ok() {
                    excused[route.0 as usize] = now + config.ttl + config.guard;
                }
            }
            _ => {
                let step = PicoDuration::from_us(input.below(1 << 18));
                now += step;
                arbiter.tick(now);
                assert!(arbiter.next_wakeup().is_none_or(|t| t > now));
            }
        }
        let mut changes = 0;
        while let Some(change) = arbiter.poll() {
            assert!(change.id.instance == 1);
            changes += 1;
        }
        assert!(changes <= 32, "more changes than leases: {changes}");
        for (r, excused) in excused.iter().enumerate() {
            let view = arbiter.route(RouteId(r as u32)).expect("a route");
            assert!(view.leases.len() <= 16);
            let fits = view.charged_bps <= view.route.usable_bps();
            assert!(fits || now < *excused, "{view:?}");
        }
    }
}
