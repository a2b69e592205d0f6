//! A server: its address, its life, and HTTP.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, LOCATION};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::access::Request;
use crate::answer::answer;
use crate::faults::Faults;
use crate::refusal::Refusal;
use crate::store::Store;
use crate::watch::Watch;

type Body = BoxBody<Bytes, Infallible>;

/// The longest body of a request, as of a real server.
const MAX_BODY: usize = 3 << 20;

/// An API server. Dropping it is a kill, after which another one can have the address.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Whether it shall run. The thread answers each wish when it is done.
    wish: watch::Sender<bool>,
    done: mpsc::Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    faults: watch::Sender<Faults>,
    requests: Mutex<Vec<Request>>,
}

impl ApiServer {
    /// Serves the store at this address, in the namespaces of the calling thread. Port 0 chooses a port.
    pub fn start(store: &Store, address: SocketAddr) -> ApiServer {
        let shared =
            Shared { store: store.clone(), faults: watch::Sender::default(), requests: Mutex::default() };
        let shared = Arc::new(shared);
        let listener = std::net::TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let ((wish, wished), (answers, done)) = (watch::channel(true), mpsc::channel());
        let served = shared.clone();
        thread::spawn(move || keep(&served, listener, wished, &answers));
        ApiServer { shared, address, wish, done }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections at once, and refuses new ones.
    pub fn kill(&self) {
        self.wish(false);
    }

    /// Serves again, with the same store and the same faults.
    pub fn revive(&self) {
        self.wish(true);
    }

    fn wish(&self, runs: bool) {
        assert!(self.wish.send_replace(runs) != runs, "nothing to do");
        self.done.recv().unwrap();
    }

    /// Changes the faults, from the next request on.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.faults.send_modify(change);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if *self.wish.borrow() {
            self.kill();
        }
    }
}

/// The thread of a server. It binds the address anew for each life, which the namespace decides.
fn keep(
    shared: &Arc<Shared>,
    listener: std::net::TcpListener,
    mut wished: watch::Receiver<bool>,
    done: &mpsc::Sender<()>,
) {
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    loop {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            if let Some(listener) = listener.take() {
                listener.set_nonblocking(true).unwrap();
                tokio::spawn(serve(shared.clone(), TcpListener::from_std(listener).unwrap()));
            }
            wished.changed().await.is_err()
        });
        // Closes all sockets.
        drop(runtime);
        if ended {
            return;
        }
        if *wished.borrow() {
            listener = Some(bind_again(address));
        }
        if done.send(()).is_err() {
            return;
        }
    }
}

/// Between fork and exec, a process that another thread starts has a copy of the closed socket: up to 10 seconds of attempts.
fn bind_again(address: SocketAddr) -> std::net::TcpListener {
    for _ in 0..1000 {
        match std::net::TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => thread::sleep(Duration::from_millis(10)),
            bound => return bound.unwrap(),
        }
    }
    panic!("{address} stays in use");
}

async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = shared.clone();
        let service = service_fn(move |request| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(respond(&shared, request).await) }
        });
        // A client may go at any time.
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

async fn respond(shared: &Shared, request: hyper::Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let asked = Request::new(parts.method.as_str(), parts.uri.path(), query, &parts.headers);
    shared.requests.lock().unwrap().push(asked.clone());
    let faults = shared.faults.borrow().at(parts.uri.path());
    if faults.hang {
        std::future::pending::<()>().await;
    }
    sleep(faults.delay).await;
    if let Some((_, code, body)) = faults.proxy.filter(|(verb, ..)| *verb == asked.verb) {
        let mut response = json(code, Full::from(body).boxed());
        response.headers_mut().insert(LOCATION, "http://127.0.0.1:1/".parse().unwrap());
        return response;
    }
    let content_type =
        parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match handle(shared, &asked, content_type, body, &faults).await {
        Ok(response) => response,
        Err(refusal) => json(refusal.code, Full::from(refusal.to_json().to_string()).boxed()),
    }
}

async fn handle(
    shared: &Shared,
    request: &Request,
    content_type: &str,
    body: Incoming,
    faults: &Faults,
) -> Result<Response<Body>, Refusal> {
    let target = request.admit(faults)?;
    if request.verb == "watch" {
        let (sender, body) = Channel::new(1);
        let watch = Watch::new(&shared.store, request, target, shared.faults.subscribe())?;
        tokio::spawn(watch.run(sender));
        return Ok(json(200, body.boxed()));
    }
    let read = Limited::new(body, MAX_BODY).collect().await;
    let body = read.map_err(|error| Refusal::new("BadRequest", error.to_string()))?.to_bytes();
    let (code, object) = answer(&shared.store, request, &target, content_type, &body, faults)?;
    let text = object.to_string();
    let slow = Some(faults.slow_list).filter(|time| request.verb == "list" && *time > Duration::ZERO);
    let Some(time) = slow else { return Ok(json(code, Full::from(text).boxed())) };
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut first = Bytes::from(text);
        let rest = first.split_off(first.len() / 2);
        if sender.send_data(first).await.is_ok() {
            sleep(time).await;
            // The client may have gone.
            let _ = sender.send_data(rest).await;
        }
    });
    Ok(json(code, body.boxed()))
}

fn json(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert(CONTENT_TYPE, "application/json".parse().unwrap());
    response
}
