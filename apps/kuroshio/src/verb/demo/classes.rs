//! Who keeps the rates of the demo's streams: classes of psp at San Diego's ports where psp is loaded, else TCP.
//!
//! ```text
//! a thread in San Diego's network:  classes made -> who paces is told -> held until the run is over -> taken back
//! ```
//!
//! As with `cp`, a class is for a rate that does not change: a port's share of its route. A route that is to lose capacity has
//! none; its streams follow their leases by TCP's own pace. The ports are TAP devices, which never block: psp paces by its timer.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use kuroshio_pace::{Mode, Own, Temporary};
use kuroshio_testbed::Testbed;

use super::net::{Net, ROUTES, SENDER, ports};
use super::site::PORT;
use crate::error::Failure;
use crate::paced::PacedBy;

/// Classes that go when this goes.
pub struct Classes {
    /// Who keeps the rates, in words.
    pub paced_by: String,
    /// Closed: the run is over.
    over: Option<mpsc::Sender<()>>,
    holder: Option<JoinHandle<std::io::Result<()>>>,
}

impl Classes {
    /// Makes classes for all routes but `shrinking`.
    pub fn new(ocean: &Testbed, net: &Net, shrinking: Option<usize>) -> Result<Self, Failure> {
        let failed = |e: String| Failure::failed(format!("who paces: {e}"));
        let mut far = Vec::new();
        let mut own = Vec::new();
        for ((route, _, _), address) in ports().zip(net.receiver_addresses()) {
            let ip = address.parse().map_err(|e| failed(format!("{address}: {e}")))?;
            far.push(ip);
            let rate = ROUTES.get(route).and_then(|r| net.port_share(r));
            if let Some(rate) = rate.filter(|_| shrinking != Some(route)) {
                own.push(Own {
                    to: SocketAddr::new(ip, PORT),
                    rate,
                    mode: Mode::Static,
                });
            }
        }
        let (over, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let hold = move || {
            let made = Temporary::psp(&own).unwrap_or_else(|e| {
                eprintln!("kuroshio: no classes of psp for these streams: {e}");
                Vec::new()
            });
            let by = PacedBy::default();
            by.has_classes(&made);
            far.into_iter().for_each(|ip| by.note(ip));
            let _ = tell.send(by.all().join(", "));
            // Ends with its sender.
            let _ = wait.recv();
        };
        let holder = ocean.in_host(SENDER, hold).map_err(|e| failed(e.to_string()))?;
        let paced_by = told
            .recv()
            .map_err(|_| failed(format!("the thread in {SENDER} ended")))?;
        Ok(Self {
            paced_by,
            over: Some(over),
            holder: Some(holder),
        })
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(holder) = self.holder.take() {
            let _ = holder.join();
        }
    }
}
