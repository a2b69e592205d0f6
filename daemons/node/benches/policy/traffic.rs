//! What packets cost: a stream and new connections between two pods of a node without policies and of one with 1,000, in turns.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::{Node, Place as _, Pod};

use super::{Thread, pod};

const TURNS: usize = 9;
const STREAM: Duration = Duration::from_secs(1);
const CONNECTIONS: u32 = 1000;
/// The first byte of a client tells the server whether a stream follows.
const IS_STREAM: u8 = 1;

/// A node with its policies, and a client that they allow.
struct Side {
    _node: Node,
    client: Pod,
    server: SocketAddr,
    thread: Thread,
}

impl Side {
    /// With `policies` policies in each of 100 namespaces.
    fn new(policies: usize) -> Side {
        let node = Node::new().unwrap();
        let [server, client] = [(0, "server"), (1, "client")].map(|(number, name)| {
            let own = pod(0, number, number).addresses.v4.unwrap();
            let place = node.pod(name).unwrap();
            node.sh(&format!(
                "set -e; echo 1 >/proc/sys/net/ipv4/ip_forward
                ip link add v{number} type veth peer name eth0 netns {name}
                ip link set v{number} up; ip address add 10.1.0.{}/32 dev v{number}; ip route add {own}/32 dev v{number}",
                number + 1
            ))
            .unwrap();
            place
                .sh(&format!(
                    "set -e; ip link set eth0 up; ip address add {own}/32 dev eth0
                    ip route add 10.1.0.{0}/32 dev eth0; ip route add default via 10.1.0.{0}",
                    number + 1
                ))
                .unwrap();
            (place, IpAddr::V4(own))
        });
        let thread = Thread::start(&node);
        thread.fill(100, 2, policies);
        let address = SocketAddr::new(server.1, 80);
        let listener = server.0.run(|| TcpListener::bind(address)).unwrap().unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(answer));
        Side { _node: node, client: client.0, server: address, thread }
    }

    /// Gbit/s.
    fn throughput(&self) -> f64 {
        let mut stream = self.client.run(|| TcpStream::connect(self.server)).unwrap().unwrap();
        stream.write_all(&[IS_STREAM]).unwrap();
        let (data, mut sent, began) = (vec![0; 128 * 1024], 0, Instant::now());
        while began.elapsed() < STREAM {
            sent += stream.write(&data).unwrap();
        }
        sent as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9
    }

    /// A second. The next connection begins when the last one has its answer.
    fn connections(&self) -> f64 {
        let began = Instant::now();
        let connect = || {
            for _ in 0..CONNECTIONS {
                let mut stream = TcpStream::connect(self.server).unwrap();
                stream.write_all(&[0]).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
        };
        self.client.run(connect).unwrap();
        f64::from(CONNECTIONS) / began.elapsed().as_secs_f64()
    }
}

fn answer(mut stream: TcpStream) {
    let mut first = [0];
    if stream.read_exact(&mut first).is_err() {
        return;
    }
    if first == [IS_STREAM] {
        let mut buffer = vec![0; 128 * 1024];
        while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
    } else {
        let _ = stream.write_all(&[0]);
    }
}

type Measure = (&'static str, fn(&Side) -> f64);

/// Prints the table.
pub(crate) fn compare() {
    let sides = [0, 10].map(Side::new);
    println!(
        "\n| median (lowest to highest of {TURNS} turns) | no policy | 1,000 policies |\n|---|---:|---:|"
    );
    let measure: [Measure; 2] = [
        ("throughput of one stream, Gbit/s", Side::throughput),
        ("new connections a second", Side::connections),
    ];
    for (what, measure) in measure {
        let mut figures = [Vec::new(), Vec::new()];
        for turn in 0..2 * TURNS {
            figures[turn % 2].push(measure(&sides[turn % 2]));
        }
        let cells = figures.map(|mut all| {
            all.sort_unstable_by(f64::total_cmp);
            let digits = if all[0] < 100.0 { 2 } else { 0 };
            format!("{:.digits$} ({:.digits$} to {:.digits$})", all[TURNS / 2], all[0], all[TURNS - 1])
        });
        println!("| {what} | {} |", cells.join(" | "));
    }
    for side in sides {
        side.thread.end();
    }
}
