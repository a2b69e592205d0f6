//! `/metrics`, `/healthz` and `/readyz`: one answer for each connection.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use cni_common::line::Line;
use ferrule_daemon::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::guard;
use crate::policy::Report;
use crate::word::Word;

/// How long a client may take to send the head of its request, and then to take the answer.
const LIMIT: Duration = Duration::from_secs(2);
/// The most connections at once. The oldest one goes: a client that has something to say says it at once.
const CONNECTIONS: usize = 64;
/// The longest head of a request in bytes.
const MAX_HEAD: usize = 8 << 10;
/// How long to wait for an address that another program has.
const PAUSE: Duration = Duration::from_secs(60);

/// The figures for `/metrics` and `/readyz`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// What the daemon says of this node.
    pub word: Word,
    /// Why.
    pub reasons: Vec<String>,
    /// The number of reasons by code.
    pub counts: Vec<(&'static str, usize)>,
    /// The other nodes by their standing.
    pub peers: Vec<(&'static str, usize)>,
    /// The oldest of the last answers.
    pub oldest: Option<SystemTime>,
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
    /// The NetworkPolicies; `None` with `--policy off`.
    pub policy: Option<Report>,
}

/// What a process says of itself.
pub trait Pages: Send + Sync + 'static {
    /// Whether it serves, and the text of `/readyz`.
    fn ready(&self) -> (bool, String);
    /// The text of `/metrics`.
    fn metrics(&self) -> String;
}

impl Pages for Figures {
    fn ready(&self) -> (bool, String) {
        (self.word.serves(), ready(self))
    }

    fn metrics(&self) -> String {
        metrics(self) + &guard::metrics() + &policy(self)
    }
}

/// Answers until it is dropped. Tries again if the address is taken: the network works without this server.
pub async fn run(address: SocketAddr, figures: watch::Receiver<impl Pages>) {
    let mut is_told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    log!("cannot serve metrics at {address}: {error}; tries again each minute");
                }
                sleep(PAUSE).await;
            }
        }
    };
    accept(listener, figures, LIMIT).await;
}

async fn accept(listener: TcpListener, figures: watch::Receiver<impl Pages>, limit: Duration) {
    let (mut tasks, mut order) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while tasks.try_join_next().is_some() {}
                order.retain(|task| !task.is_finished());
                if order.len() >= CONNECTIONS
                    && let Some(oldest) = order.pop_front()
                {
                    oldest.abort();
                }
                let figures = figures.clone();
                order.push_back(tasks.spawn(async move {
                    let _ = answer(stream, &figures, limit).await;
                }));
            }
            // No descriptor is free.
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
}

async fn answer(
    mut stream: TcpStream,
    figures: &watch::Receiver<impl Pages>,
    limit: Duration,
) -> std::io::Result<()> {
    let Some(head) = timeout(limit, head(&mut stream)).await?? else { return Ok(()) };
    let text = respond(&head, &*figures.borrow());
    timeout(limit, async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    })
    .await?
}

/// The head of the request; `None` if the client has gone.
async fn head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

/// The answer to a request's head.
fn respond(head: &[u8], pages: &impl Pages) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/healthz") => ("200 OK", "ok\n".to_owned()),
        (b"GET" | b"HEAD", b"/readyz") => {
            let (serves, text) = pages.ready();
            (if serves { "200 OK" } else { "503 Service Unavailable" }, text)
        }
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", pages.metrics()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "/metrics, /healthz or /readyz\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET\n".to_owned()),
    };
    let len = body.len();
    let body = if method == b"HEAD" { String::new() } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The word, and a line for each reason.
fn ready(figures: &Figures) -> String {
    let mut text = format!("{}\n", figures.word);
    for reason in &figures.reasons {
        let _ = writeln!(text, "{}", Line::new(reason));
    }
    text
}

fn policy(figures: &Figures) -> String {
    figures.policy.as_ref().map(|report| report.metrics(SystemTime::now())).unwrap_or_default()
}

fn metrics(figures: &Figures) -> String {
    let mut metrics = Metrics::new("ferrule_node_");
    let serves = u8::from(figures.word.serves());
    metrics.one("ready", "gauge", "1 if the word is ready or degraded, as /readyz.", serves);
    let words = Word::ALL.map(|word| (word.to_string().replace(' ', "_"), u8::from(word == figures.word)));
    metrics.add(("word", "gauge", "1 for what the daemon says of this node."), "word", words);
    let counts = figures.counts.iter().copied();
    metrics.add(("reasons", "gauge", "Reasons for a word that is not ready, by code."), "code", counts);
    metrics.add(("peers", "gauge", "Other nodes by how they stand."), "state", figures.peers.iter().copied());
    if let Some(at) = figures.oldest {
        let age = SystemTime::now().duration_since(at).unwrap_or_default().as_secs();
        metrics.one("oldest_proof_age_seconds", "gauge", "The age of the oldest last answer.", age);
    }
    metrics.one("api_connected", "gauge", "1 if the nodes are followed.", u8::from(figures.connected));
    metrics.one("api_failures_total", "counter", "Failed connections to the API server.", figures.failures);
    metrics.one("nodes", "gauge", "Other nodes of the cluster.", figures.nodes);
    let networks = figures.networks.iter().copied();
    metrics.add(("networks", "gauge", "podCIDRs of other nodes by the way to them."), "way", networks);
    metrics.one("routes", "gauge", "Routes of this daemon in the kernel.", figures.routes);
    metrics.one("problems", "gauge", "Parts that do not work.", figures.problems);
    metrics.one("syncs_total", "counter", "How often the kernel was compared with the plan.", figures.syncs);
    metrics.one("sync_seconds_total", "counter", "The time that this took.", figures.sync_seconds);
    let requests = "Requests to the kernel that changed a route.";
    metrics.one("route_requests_total", "counter", requests, figures.requests);
    metrics.text()
}

#[cfg(test)]
mod tests {
    use ferrule_node_policy::model::Direction;

    use super::*;
    use crate::policy::Count;
    use crate::word::Standing;

    #[test]
    fn each_path_has_its_answer() {
        let bad = Figures { word: Word::NotReady, reasons: vec!["no podCIDR".into()], ..Figures::default() };
        let good = Figures { word: Word::Ready, networks: vec![("route", 3)], ..Figures::default() };
        let half = Figures { word: Word::Degraded, reasons: vec!["node b".into()], ..Figures::default() };
        let new = Figures::default();
        for (head, figures, status, body) in [
            ("GET /healthz HTTP/1.1\r\n\r\n", &bad, "200", "ok\n"),
            ("GET /healthz HTTP/1.1\r\n\r\n", &new, "200", "ok\n"),
            ("GET /readyz?verbose HTTP/1.1\r\n\r\n", &good, "200", "\r\n\r\nready\n"),
            ("GET /readyz HTTP/1.1\r\n\r\n", &half, "200", "\r\n\r\ndegraded\nnode b\n"),
            ("GET /readyz HTTP/1.1\r\n\r\n", &new, "503", "\r\n\r\nwaiting\n"),
            ("GET /readyz HTTP/1.1\r\n\r\n", &bad, "503", "\r\n\r\nnot ready\nno podCIDR\n"),
            ("GET /metrics HTTP/1.1\r\n\r\n", &bad, "200", "\nferrule_node_word{word=\"not_ready\"} 1\n"),
            ("GET /metrics HTTP/1.1\r\n\r\n", &half, "200", "\nferrule_node_ready 1\n"),
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

    #[test]
    fn alerts_ask_for_what_there_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring/node-alerts.yaml");
        let rules = std::fs::read_to_string(path).unwrap();
        let peers = Standing::KEYS.into_iter().map(|key| (key, 0)).collect();
        let count = Count {
            namespace: "x".into(),
            pod: "x".into(),
            direction: Direction::Ingress,
            is_dry: false,
            policies: "x".into(),
        };
        let report = Report { denied: vec![(count, 1)], ..Report::default() };
        let (oldest, report) = (Some(SystemTime::now()), Some(report));
        let figures = Figures { peers, oldest, policy: report, ..Figures::default() };
        let metrics = metrics(&figures) + &policy(&figures);
        let expressions: Vec<&str> =
            rules.lines().filter_map(|line| line.trim().strip_prefix("expr: max by (instance) (")).collect();
        assert_eq!(expressions.len(), rules.matches("alert:").count());
        for expression in expressions {
            let expression = expression.strip_prefix("rate(").unwrap_or(expression);
            let (name, rest) = expression.split_once(['{', ')']).unwrap();
            let labels = rest.split_once('"').and_then(|(label, rest)| {
                let values = rest.split_once('"')?.0;
                Some(
                    values.split('|').map(|value| format!("{}\"{value}\"", label.replace('~', ""))).collect(),
                )
            });
            for label in labels.unwrap_or_else(|| vec![String::new()]) {
                let is_series = |line: &str| {
                    let rest = line.strip_prefix(name);
                    rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(&label))
                };
                assert!(metrics.lines().any(is_series), "{name} {label}\n{metrics}");
            }
        }
    }

    #[test]
    fn the_dashboard_asks_for_denials() {
        let count = |is_dry| Count {
            namespace: "x".into(),
            pod: "x".into(),
            direction: Direction::Ingress,
            is_dry,
            policies: "x".into(),
        };
        let report = Report { denied: vec![(count(false), 1), (count(true), 1)], ..Report::default() };
        let metrics = policy(&Figures { policy: Some(report), ..Figures::default() });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring/grafana.json");
        let dashboard = std::fs::read_to_string(path).unwrap();
        let wanted: Vec<&str> = dashboard.split("(ferrule_node_").skip(1).collect();
        assert_eq!(wanted.len(), 2);
        for (wanted, mode) in wanted.into_iter().zip(["enforce", "dry"]) {
            let (name, rest) = wanted.split_once('{').unwrap();
            assert!(
                rest.starts_with(&format!("instance=~\\\"$instance\\\", mode=\\\"{mode}\\\"}}")),
                "{rest}"
            );
            let row = format!(
                "ferrule_node_{name}{{namespace=\"x\",pod=\"x\",direction=\"ingress\",mode=\"{mode}\",policies=\"x\"}} 1"
            );
            assert!(metrics.lines().any(|line| line == row), "{row}\n{metrics}");
        }
    }

    #[tokio::test]
    async fn idle_connections_keep_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_figures, served) = watch::channel(Figures::default());
        // They could stay for longer than this test.
        let server = tokio::spawn(accept(listener, served, Duration::from_secs(3600)));
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS + 3 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok\n"), "{answer}");
        // The oldest ones have gone, the others are there.
        let (gone, there) = idle.split_at_mut(4);
        for stream in gone {
            assert!(stream.read_u8().await.is_err());
        }
        let open = |stream: &TcpStream| matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(there.iter().all(open));
        server.abort();
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_figures, served) = watch::channel(Figures::default());
        let server = tokio::spawn(accept(listener, served, Duration::from_millis(1)));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /healthz").await.unwrap();
        assert!(client.read_u8().await.is_err());
        server.abort();
    }
}
