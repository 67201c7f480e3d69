//! A window for pictures: a player that is installed, on a pipe.
//!
//! ```text
//!   receiver -> y4m (RGB: raw rows) -> pipe -> ffplay or mpv -> window        closed by its user: the receiver ends well
//! ```
//!
//! The pipe holds 64 KiB, so a player that is too slow holds the screen's thread up, and pictures are late: that is counted as
//! ever. The player's own messages go to standard error.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::video::{Geometry, PixelFormat};

use crate::error::Failure;

/// What a window needs: X11 or Wayland.
const DISPLAYS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];
/// Players that are known, the first one that is installed is taken.
const PLAYERS: [&str; 2] = ["ffplay", "mpv"];

/// Whether the player has ended before the video.
pub type Closed = Arc<AtomicBool>;

/// The pipe to a player. Dropping it lets the player show what it has and waits for its end.
pub struct Window {
    pipe: Option<ChildStdin>,
    player: Child,
    /// The user has closed the window.
    closed: Closed,
    /// Asks the receiver to end.
    stop: Arc<AtomicBool>,
}

impl Window {
    /// Starts a player.
    ///
    /// # Errors
    /// When there is no display, no player, or none that shows this format, with what there is instead.
    pub fn open(geometry: Geometry, rate: (u32, u32), stop: Arc<AtomicBool>) -> Result<Self, Failure> {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !DISPLAYS.iter().any(|name| set(name)) {
            return Err(Failure::usage(
                "--display: no display here (neither DISPLAY nor WAYLAND_DISPLAY is set); --out FILE, --out - (a pipe) or \
                 --snapshot FILE is valid",
            ));
        }
        if geometry.format() == PixelFormat::Rgb10 {
            return Err(Failure::usage(
                "--display: no player shows rgb10 as it is on the wire; any other --format, or --snapshot FILE, is valid",
            ));
        }
        let Some((name, path)) = PLAYERS.iter().find_map(|name| Some((*name, find(name)?))) else {
            return Err(Failure::usage(
                "--display: neither ffplay (ffmpeg) nor mpv is installed; --out FILE or --out - is valid",
            ));
        };
        let mut player = Command::new(&path)
            .args(arguments(name, geometry, rate))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| Failure::failed(format!("--display: starting {}: {e}", path.display())))?;
        Ok(Self {
            pipe: player.stdin.take(),
            player,
            closed: Closed::default(),
            stop,
        })
    }

    /// Tells, later, whether the window was closed.
    pub fn closed(&self) -> Closed {
        Arc::clone(&self.closed)
    }
}

/// A program in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// What a player is told: little buffering, no terminal, what the pipe has.
fn arguments(player: &str, geometry: Geometry, rate: (u32, u32)) -> Vec<String> {
    let (w, h, fps) = (
        geometry.width(),
        geometry.height(),
        format!("{}/{}", rate.0, rate.1),
    );
    let raw = geometry.format() == PixelFormat::Rgb8;
    let text = match (player, raw) {
        ("ffplay", false) => "-f yuv4mpegpipe -i -".to_owned(),
        ("ffplay", true) => {
            format!("-f rawvideo -pixel_format rgb24 -video_size {w}x{h} -framerate {fps} -i -")
        }
        (_, false) => "--demuxer-lavf-format=yuv4mpegpipe -".to_owned(),
        (_, true) => format!(
            "--demuxer=rawvideo --demuxer-rawvideo-w={w} --demuxer-rawvideo-h={h} --demuxer-rawvideo-mp-format=rgb24 \
             --demuxer-rawvideo-fps={} -",
            f64::from(rate.0) / f64::from(rate.1)
        ),
    };
    let first: &[&str] = if player == "ffplay" {
        &[
            "-hide_banner",
            "-loglevel",
            "warning",
            "-autoexit",
            "-fflags",
            "nobuffer",
            "-window_title",
            "kuroshio netv",
        ]
    } else {
        &[
            "--no-terminal",
            "--profile=low-latency",
            "--untimed",
            "--title=kuroshio netv",
        ]
    };
    let rest = text.split(' ').filter(|word| !word.is_empty());
    first.iter().copied().chain(rest).map(str::to_owned).collect()
}

impl Write for Window {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(bytes.len());
        };
        match pipe.write(bytes) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.pipe = None;
                self.closed.store(true, Ordering::Release);
                self.stop.store(true, Ordering::Release);
                Ok(bytes.len())
            }
            other => other,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // The end of the pipe is the end of the video.
        self.pipe = None;
        // How a player ends is its own affair.
        let _ = self.player.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn players_are_told_what_the_pipe_has() {
        let geometry = |format| Geometry::new(640, 360, format).expect("a size");
        let told = |player, format| arguments(player, geometry(format), (30_000, 1_001)).join(" ");
        assert!(told("ffplay", PixelFormat::Yuv422b8).ends_with("-f yuv4mpegpipe -i -"));
        let raw = told("ffplay", PixelFormat::Rgb8);
        assert!(
            raw.ends_with("-pixel_format rgb24 -video_size 640x360 -framerate 30000/1001 -i -"),
            "{raw}"
        );
        let raw = told("mpv", PixelFormat::Rgb8);
        assert!(
            raw.contains("--demuxer-rawvideo-w=640 --demuxer-rawvideo-h=360") && raw.ends_with(" -"),
            "{raw}"
        );
        assert!(
            arguments("ffplay", geometry(PixelFormat::Rgb8), (30, 1)).contains(&"kuroshio netv".to_owned())
        );
    }
}
