//! SCTP connections to host ports from an outside client, by both backends. They need root and a kernel with SCTP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr};
use std::thread;

use cni_lab::testing::silent;
use cni_lab::{Place, TIMEOUT, kernel_module};
use common::{World, mapping, pods};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};

/// What a client sends: several packets.
const REQUEST: [u8; 8192] = [b'?'; 8192];

fn socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::SCTP))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Answers each request to a port there with a name and the caller's address, until the test ends.
fn serve(place: &impl Place, name: &str, port: u16) {
    let listen = || {
        let listener = socket(Domain::IPV6)?;
        listener.set_only_v6(false)?;
        listener.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
        listener.listen(8)?;
        io::Result::Ok(listener)
    };
    let listener = place.run(listen).unwrap().unwrap();
    let name = name.to_owned();
    let answer = move || -> io::Result<()> {
        let (mut connection, caller) = listener.accept()?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.read_exact(&mut REQUEST.clone())?;
        let caller = caller.as_socket().map(|caller| caller.ip().to_canonical().to_string());
        connection.write_all(format!("{name} {}", caller.unwrap_or_default()).as_bytes())
    };
    thread::spawn(move || {
        loop {
            let _ = answer();
        }
    });
}

/// The answer to a request from there.
fn ask(place: &impl Place, to: SocketAddr) -> io::Result<String> {
    let ask = || {
        let mut connection = socket(Domain::for_address(to))?;
        connection.connect_timeout(&to.into(), TIMEOUT)?;
        connection.write_all(&REQUEST)?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    place.run(ask).unwrap()
}

/// `sabotage`: a shell command for each family that breaks the host port, to prove that these tests would notice.
fn host_port(backend: &str, sabotage: [&str; 2]) {
    kernel_module("sctp");
    let world = World::new();
    let network = pods(json!({"backend": backend}));
    let server = world.add("server", &network, &json!([mapping("sctp", "", 8080, 80)]));
    serve(&server.pod, "server", 80);
    let to = |v6| SocketAddr::new(world.address(v6), 8080);
    let refused = |v6: bool| {
        let answer = ask(&world.outside[usize::from(v6)], to(v6));
        assert_eq!(answer.map_err(|error| error.kind()), Err(ErrorKind::ConnectionRefused));
    };
    for v6 in [false, true] {
        let client = &world.outside[usize::from(v6)];
        for _ in 0..3 {
            assert_eq!(ask(client, to(v6)).unwrap(), format!("server {}", client.address()));
        }
        // The mapping is for SCTP alone.
        assert!(silent(client, "tcp", to(v6)));
    }
    assert_eq!(server.check(), Ok(()));

    for v6 in [false, true] {
        world.node.sh(sabotage[usize::from(v6)]).unwrap();
        refused(v6);
        assert!(server.check().is_err());
    }
    server.del();

    let server = world.add("again", &network, &json!([mapping("sctp", "", 8080, 80)]));
    serve(&server.pod, "again", 80);
    for v6 in [false, true] {
        let client = &world.outside[usize::from(v6)];
        assert_eq!(ask(client, to(v6)).unwrap(), format!("again {}", client.address()));
    }
    server.del();
    refused(false);
    refused(true);
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn by_nftables() {
    host_port(
        "nftables",
        [
            "nft delete element inet cni_portmap dnat4 '{ sctp . 8080 }'",
            "nft delete element inet cni_portmap dnat6 '{ sctp . 8080 }'",
        ],
    );
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn by_iptables() {
    host_port(
        "iptables",
        [
            "iptables -t nat -F $(iptables -t nat -S | sed -n 's/^-N \\(CNI-DN-.*\\)/\\1/p')",
            "ip6tables -t nat -F $(ip6tables -t nat -S | sed -n 's/^-N \\(CNI-DN-.*\\)/\\1/p')",
        ],
    );
}
