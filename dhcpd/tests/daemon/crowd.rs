//! 200 containers at once.

use std::collections::BTreeSet;
use std::thread;

use cni_lab::testing::with_prev;
use cni_lab::{TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::Server;

const CROWD: usize = 200;

#[test]
fn two_hundred_leases_at_once() {
    let began = std::time::Instant::now(); let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (size, conf) = (daemon.size(), config(&json!({})));
    let pods: Vec<_> = (0..CROWD).map(|number| lab.pod(&format!("p{number}"))).collect();
    eprintln!("let all = {:?}", began.elapsed());
    let all = |work: &(dyn Fn(usize) -> Option<serde_json::Value> + Sync)| -> Vec<_> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..CROWD).map(|number| scope.spawn(move || work(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let results = all(&|number| Some(lab.ctx.add(&pods[number].attachment("eth0"), &conf)));
    let addresses: BTreeSet<String> =
        results.iter().flatten().map(|result| result["ips"][0]["address"].to_string()).collect();
    assert_eq!((addresses.len(), lab.files().len()), (CROWD, CROWD));
    eprintln!("// A restart {:?}", began.elapsed());
    // A restart takes all of them up again, without a message to the server.
    daemon.end("KILL");
    server.log();
    eprintln!("daemon = lab.daemon {:?}", began.elapsed());
    daemon = lab.daemon(&[]);
    all(&|number| {
        let conf = with_prev(&conf, results[number].as_ref().unwrap());
        lab.ctx.check(&pods[number].attachment("eth0"), &conf);
        None
    });
    eprintln!("assert!(server.log().is {:?}", began.elapsed());
    assert!(server.log().is_empty());
    all(&|number| {
        lab.ctx.del(&pods[number].attachment("eth0"), &conf);
        None
    });
    eprintln!("assert!(eventually(TIMEOUT, || server {:?}", began.elapsed());
    assert!(eventually(TIMEOUT, || server.leased().is_empty()), "{:?}", server.leased());
    assert!(lab.files().is_empty());
    assert!(eventually(TIMEOUT, || daemon.size() <= size), "{size:?}, then {:?}", daemon.size());
}
