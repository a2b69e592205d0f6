//! `/metrics`, `/healthz` and `/readyz`: one answer for each connection.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::guard;

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The most connections at once.
const CONNECTIONS: usize = 16;
/// The longest head of a request in bytes.
const MAX_HEAD: usize = 8 << 10;
/// How long to wait for an address that another program has.
const PAUSE: Duration = Duration::from_secs(60);

/// The figures for `/metrics` and `/readyz`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Why the node is not ready; empty if it is.
    pub not_ready: Vec<String>,
    /// The other nodes.
    pub nodes: usize,
    /// The number of podCIDRs by way, such as `route`.
    pub networks: Vec<(&'static str, usize)>,
    /// The routes in the kernel.
    pub routes: usize,
    /// Whether the API server is followed.
    pub connected: bool,
    /// How often the connection to the API server failed.
    pub failures: u64,
    /// How often the kernel was compared with the plan.
    pub syncs: u64,
    /// How long that took in all.
    pub sync_seconds: f64,
    /// The requests about routes.
    pub requests: u64,
    /// The parts that do not work.
    pub problems: usize,
}

/// Answers until it is dropped. Tries again if the address is taken: the network works without this server.
pub async fn run(address: SocketAddr, figures: watch::Receiver<Figures>) {
    let mut is_told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    log!("--listen {address}: {error}; tries again each minute");
                }
                sleep(PAUSE).await;
            }
        }
    };
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let figures = figures.clone();
                tokio::spawn(async move {
                    let _ = timeout(LIMIT, answer(stream, &figures)).await;
                    drop(permit);
                });
            }
            // No descriptor is free.
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
}

async fn answer(mut stream: TcpStream, figures: &watch::Receiver<Figures>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let text = respond(&head, &figures.borrow());
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// The answer to a request's head.
fn respond(head: &[u8], figures: &Figures) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/healthz") => ("200 OK", "ok\n".to_owned()),
        (b"GET" | b"HEAD", b"/readyz") if figures.not_ready.is_empty() => ("200 OK", "ok\n".to_owned()),
        (b"GET" | b"HEAD", b"/readyz") => {
            ("503 Service Unavailable", format!("{}\n", figures.not_ready.join("\n")))
        }
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", metrics(figures) + &guard::metrics()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "/metrics, /healthz or /readyz\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET\n".to_owned()),
    };
    let len = body.len();
    let body = if method == b"HEAD" { String::new() } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn metrics(figures: &Figures) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, rows: &[(String, String)]| {
        let _ = writeln!(text, "# HELP ferrule_node_{name} {help}\n# TYPE ferrule_node_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "ferrule_node_{name}{labels} {value}");
        }
    };
    let one = |value: &dyn ToString| vec![(String::new(), value.to_string())];
    let Figures { nodes, routes, failures, syncs, sync_seconds, requests, problems, .. } = figures;
    let ways: Vec<_> = figures
        .networks
        .iter()
        .map(|(way, count)| (format!("{{way=\"{way}\"}}"), count.to_string()))
        .collect();
    add(
        "ready",
        "gauge",
        "1 if the pods of this node have their network.",
        &one(&u8::from(figures.not_ready.is_empty())),
    );
    add("api_connected", "gauge", "1 if the nodes are followed.", &one(&u8::from(figures.connected)));
    add("api_failures_total", "counter", "Failed connections to the API server.", &one(failures));
    add("nodes", "gauge", "Other nodes of the cluster.", &one(nodes));
    add("networks", "gauge", "podCIDRs of other nodes by the way to them.", &ways);
    add("routes", "gauge", "Routes of this daemon in the kernel.", &one(routes));
    add("problems", "gauge", "Parts that do not work.", &one(problems));
    add("syncs_total", "counter", "How often the kernel was compared with the plan.", &one(syncs));
    add("sync_seconds_total", "counter", "The time that this took.", &one(sync_seconds));
    add("route_requests_total", "counter", "Requests to the kernel that changed a route.", &one(requests));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_answer() {
        let bad = Figures { not_ready: vec!["no podCIDR".into()], ..Figures::default() };
        let good = Figures { networks: vec![("route", 3)], ..Figures::default() };
        for (head, figures, status, body) in [
            ("GET /healthz HTTP/1.1\r\n\r\n", &bad, "200", "ok\n"),
            ("GET /readyz?verbose HTTP/1.1\r\n\r\n", &good, "200", "ok\n"),
            ("GET /readyz HTTP/1.1\r\n\r\n", &bad, "503", "no podCIDR\n"),
            ("GET /metrics HTTP/1.1\r\n\r\n", &good, "200", "\nferrule_node_networks{way=\"route\"} 3\n"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", &good, "200", "\r\n\r\n"),
            ("GET / HTTP/1.1\r\n\r\n", &good, "404", "/metrics"),
            ("POST /metrics HTTP/1.1\r\n\r\n", &good, "405", "GET"),
            ("\r\n\r\n", &good, "405", "GET"),
        ] {
            let answer = respond(head.as_bytes(), figures);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head} {answer}");
            assert!(answer.contains(body), "{head} {answer}");
        }
    }
}
