//! Host ports, checked with real connections.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};

use crate::outcome::{Stop, TestResult, ensure};
use crate::test_context::{Target, TestContext};
use cni_lab::{Client, Place as _, eventually};

const PORT: u16 = 18081;
const TIMEOUT: Duration = Duration::from_secs(2);
/// A second address of the node.
const OTHER: &str = "198.51.100.1";

/// A container and an outside client of a node with two addresses.
fn world(test: &TestContext<'_>) -> Result<(Target, Client), Stop> {
    let target = test.target("pod1")?;
    let node = test.node()?;
    let client = node.outside_client("192.0.2.0/24")?;
    // The plugin that makes the interface would enable forwarding.
    node.sh(&format!("echo 1 > /proc/sys/net/ipv4/ip_forward && ip addr add {OTHER}/32 dev lo"))?;
    Ok((target, client))
}

fn mapping(container_port: u16, protocol: &str) -> Value {
    json!({"hostPort": PORT, "containerPort": container_port, "protocol": protocol})
}

fn attach(test: &TestContext<'_>, target: &Target, mappings: &Value) -> TestResult {
    test.add(target).key("runtimeConfig", json!({"portMappings": mappings})).run()?.ok()
}

/// Whether a connection to the node reaches a listener in the container.
fn connects(client: &Client, to: SocketAddr, listener: &TcpListener) -> Result<bool, Stop> {
    let stream = client.run(|| TcpStream::connect_timeout(&to, TIMEOUT))?;
    listener.set_nonblocking(true)?;
    // The listener may see the connection slightly after the client.
    Ok(stream.is_ok() && eventually(TIMEOUT, || listener.accept().is_ok()))
}

fn listener(target: &Target, port: u16) -> Result<TcpListener, Stop> {
    Ok(target.pod.run(|| TcpListener::bind(("0.0.0.0", port)))??)
}

pub(super) fn tcp(test: &TestContext<'_>) -> TestResult {
    let (target, client) = world(test)?;
    let listener = listener(&target, 80)?;
    let to = SocketAddr::new(client.node_address(), PORT);
    ensure(!connects(&client, to, &listener)?, "a closed port before ADD", "an open one")?;
    attach(test, &target, &json!([mapping(80, "tcp")]))?;
    ensure(
        connects(&client, to, &listener)?,
        format!("a connection to port {PORT} of the host that ends at port 80 of the container"),
        "none",
    )
}

pub(super) fn udp(test: &TestContext<'_>) -> TestResult {
    let (target, client) = world(test)?;
    let socket = target.pod.run(|| UdpSocket::bind(("0.0.0.0", 53)))??;
    socket.set_read_timeout(Some(TIMEOUT))?;
    attach(test, &target, &json!([mapping(53, "udp")]))?;
    let to = SocketAddr::new(client.node_address(), PORT);
    client.run(|| UdpSocket::bind(("0.0.0.0", 0))?.send_to(b"trial", to))??;
    let mut bytes = [0; 16];
    let seen = socket.recv(&mut bytes).ok().and_then(|length| bytes.get(..length));
    ensure(
        seen == Some(b"trial"),
        format!("a datagram to port {PORT} of the host at port 53 of the container"),
        format!("{seen:?}"),
    )
}

pub(super) fn host_address(test: &TestContext<'_>) -> TestResult {
    let (target, client) = world(test)?;
    let listener = listener(&target, 80)?;
    let mut mapping = mapping(80, "tcp");
    mapping["hostIP"] = OTHER.into();
    attach(test, &target, &json!([mapping]))?;
    let to = |address: IpAddr| connects(&client, SocketAddr::new(address, PORT), &listener);
    ensure(to(OTHER.parse()?)?, format!("a connection through the host's address {OTHER}"), "none")?;
    ensure(!to(client.node_address())?, "no connection through another address of the host", "one")
}

pub(super) fn several(test: &TestContext<'_>) -> TestResult {
    let (target, client) = world(test)?;
    let (one, other) = (listener(&target, 80)?, listener(&target, 443)?);
    let mut second = mapping(443, "tcp");
    second["hostPort"] = (PORT + 1).into();
    attach(test, &target, &json!([mapping(80, "tcp"), second]))?;
    for (port, listener) in [(PORT, &one), (PORT + 1, &other)] {
        let to = SocketAddr::new(client.node_address(), port);
        ensure(
            connects(&client, to, listener)?,
            format!("a connection through port {port} of the host"),
            "none",
        )?;
    }
    Ok(())
}
