//! Servers in pods, and what their clients see.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni_lab::{Node, Place, TIMEOUT};
use nix::sched::{CloneFlags, setns};

/// The bytes of an upload, and the time that it takes at least at that rate. The first 25 ms of the rate pass at once.
const UPLOAD: usize = 600_000;
pub(crate) const LIMITED: Duration = Duration::from_millis(400);

/// A pod's network namespace with the node's file system.
pub(crate) struct Inside<'n> {
    pub(crate) node: &'n Node,
    pub(crate) netns: String,
}

impl Place for Inside<'_> {
    fn enter(&self) -> anyhow::Result<()> {
        self.node.enter()?;
        let file = File::open(&self.netns).with_context(|| self.netns.clone())?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| self.netns.clone())
    }
}

/// Answers in a thread until the test ends.
pub(crate) fn answer(place: &impl Place, port: u16, answer: fn(TcpStream) -> io::Result<()>) {
    let listener = place.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
}

pub(crate) fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

pub(crate) fn sink(mut stream: TcpStream) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink())?;
    stream.write_all(b"!")
}

pub(crate) fn connect(place: &impl Place, to: SocketAddr) -> TcpStream {
    let stream = place.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// How long it takes to send [`UPLOAD`] bytes.
pub(crate) fn upload(place: &impl Place, to: SocketAddr) -> Duration {
    let mut stream = connect(place, to);
    let start = Instant::now();
    stream.write_all(&vec![0; UPLOAD]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    start.elapsed()
}
