//! 200 leases at once: ten containers with twenty interfaces each, because the kernel takes long to remove 200 namespaces.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use cni_lab::testing::{succeed, succeed_silently, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::{Value, json};

use crate::lab::{Lab, config};
use crate::server::Server;

const PODS: usize = 10;
const LINKS: usize = 20;

#[test]
fn two_hundred_leases_at_once() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (size, conf) = (daemon.size(), config(&json!({})));
    let pods: Vec<_> = (0..PODS).map(|number| lab.ctx.pod(&format!("p{number}"))).collect();
    let mut links = String::new();
    for (pod, link) in (0..PODS).flat_map(|pod| (0..LINKS).map(move |link| (pod, link))) {
        links += &format!("link add v{pod}-{link} master br0 type veth peer name e{link} netns p{pod}\n");
        // Otherwise each of them gets the broadcasts of all others.
        links += &format!("link set v{pod}-{link} up type bridge_slave isolated on\n");
    }
    for pod in &pods {
        pod.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6").unwrap();
    }
    lab.ctx.node.sh(&format!("ip -batch - <<END\n{links}END")).unwrap();
    let attachments: Vec<_> =
        pods.iter().flat_map(|pod| (0..LINKS).map(|link| pod.attachment(&format!("e{link}")))).collect();
    let (lab, attachments) = (&lab, &attachments);
    let all = |work: &(dyn Fn(usize) -> Option<Value> + Sync)| -> Vec<Option<Value>> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..attachments.len()).map(|number| scope.spawn(move || work(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    // With a time limit each of 200 threads would poll for the end of its plugin.
    let exec = |verb: &str, number: usize, conf: &Value| {
        let mut exec = lab.ctx.exec(verb, &attachments[number], conf);
        exec.timeout = None;
        exec
    };
    let results = all(&|number| Some(succeed(&lab.ctx.node, &exec("ADD", number, &conf))));
    let addresses: BTreeSet<String> =
        results.iter().flatten().map(|result| result["ips"][0]["address"].to_string()).collect();
    assert_eq!((addresses.len(), lab.files().len()), (PODS * LINKS, PODS * LINKS));
    // A restart takes all of them up again, without a message to the server.
    daemon.end("KILL");
    // The server may still read messages of second attempts.
    let is_silent = || {
        thread::sleep(Duration::from_millis(300));
        server.log().is_empty()
    };
    assert!(eventually(TIMEOUT, is_silent));
    daemon = lab.daemon(&[]);
    all(&|number| {
        let conf = with_prev(&conf, results[number].as_ref().unwrap());
        succeed_silently(&lab.ctx.node, &exec("CHECK", number, &conf));
        None
    });
    assert_eq!(server.log(), [""; 0]);
    all(&|number| {
        succeed_silently(&lab.ctx.node, &exec("DEL", number, &conf));
        None
    });
    assert!(eventually(TIMEOUT, || server.leased().is_empty()), "{:?}", server.leased());
    assert!(lab.files().is_empty());
    assert!(eventually(TIMEOUT, || daemon.size() <= size), "{size:?}, then {:?}", daemon.size());
}
