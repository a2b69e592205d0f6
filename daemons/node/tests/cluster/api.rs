//! An API server that is away, slow or wrong: routes stay, pods start, and changes arrive later.

use std::thread::sleep;
use std::time::Duration;

use cni_lab::Place as _;
use ferrule_fake_apiserver::{ApiServer, Faults};

use crate::lab::{API, Cluster, OTHER, node_object, node_path, serve, wait};
use crate::member::{Member, TOKEN};

/// A node that only the API server knows.
const NEW: [&str; 2] = ["10.244.9.0/24", "fd00:244:9::/64"];

fn add_new(cluster: &Cluster) {
    cluster.store.put(&node_path("new"), node_object(&["192.0.2.9", "2001:db8::9"], &NEW));
}

fn remove_new(cluster: &Cluster) {
    cluster.store.delete(&node_path("new"));
}

fn ways_to_new() -> [String; 2] {
    [format!("{} via 192.0.2.9 dev eth0", NEW[0]), format!("{} via 2001:db8::9 dev eth0", NEW[1])]
}

fn ways(cluster: &Cluster) -> Vec<String> {
    let Cluster { a, b, c, .. } = cluster;
    [a.ways_to(b), a.ways_to(c)].concat()
}

fn asks_again(cluster: &Cluster) {
    let before = cluster.server.requests().len();
    wait("two requests", || cluster.server.requests().len(), |now| *now >= before + 2);
}

fn unchanged(member: &Member, ways: &[String]) {
    let mut expected = ways.to_vec();
    expected.sort();
    assert_eq!(member.routes(), expected, "{}", member.log());
}

#[test]
fn away_at_the_start_and_for_long() {
    let mut cluster = Cluster::new();
    cluster.server.kill();
    for member in cluster.members_mut() {
        member.start("");
    }
    sleep(Duration::from_millis(500));
    let a = &mut cluster.a;
    assert!(a.is_running() && a.routes().is_empty() && a.conflist().is_none(), "{}", a.log());
    assert_ne!(a.http("/readyz").0, 200);
    assert_eq!(a.http("/healthz").0, 200);
    cluster.server.revive();
    cluster.settled();
    cluster.a.until("ready", || cluster.a.http("/readyz").0 == 200);

    // Away again: a daemon starts, and pods.
    cluster.server.kill();
    cluster.a.end("KILL");
    let before = cluster.a.log().len();
    cluster.a.start("");
    let (one, two, three) = (cluster.a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"));
    one.reaches(&two);
    one.reaches(&three);
    cluster.a.until("a word about the server", || cluster.a.log().len() > before);
    unchanged(&cluster.a, &ways(&cluster));
    // Changes while the daemon could not see them.
    cluster.store.delete(&node_path("b"));
    add_new(&cluster);
    cluster.server.revive();
    let (a, c) = (&cluster.a, &cluster.c);
    a.has_routes(&[a.ways_to(c), ways_to_new()].concat());
    // It does not log each attempt.
    assert!(cluster.a.log().lines().count() < 100, "{}", cluster.a.log());
}

#[test]
fn faults_and_their_end() {
    let mut cluster = Cluster::new();
    for member in cluster.members_mut() {
        member.start("--watch-idle 2 --longest-pause 1");
    }
    cluster.settled();
    let expected = ways(&cluster);
    type Fault = (&'static str, fn(&mut Faults));
    let table: [Fault; 7] = [
        ("a redirected list", |faults| faults.proxy = Some(("list", 302, "<a href=/>moved</a>"))),
        ("500", |faults| faults.code = Some(500)),
        ("too many requests", |faults| faults.code = Some(429)),
        ("no permission", |faults| faults.rules = Some(Vec::new())),
        ("no such resource", |faults| faults.absent = vec!["/api/v1/nodes".to_owned()]),
        ("slow answers", |faults| faults.delay = Duration::from_millis(400)),
        ("a slow list", |faults| faults.slow_list = Duration::from_millis(400)),
    ];
    for (what, fault) in table {
        println!("{what}");
        let mut sound = Faults::default();
        cluster.server.faults(|faults| {
            sound = faults.clone();
            fault(faults);
        });
        cluster.server.kill();
        cluster.server.revive();
        asks_again(&cluster);
        unchanged(&cluster.a, &expected);
        add_new(&cluster);
        cluster.server.faults(|faults| *faults = sound);
        cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
        remove_new(&cluster);
        cluster.a.has_routes(&expected);
    }
    assert!(cluster.a.is_running());
    for (code, body, said) in [
        (302, "", "the watch has ended at once, without a word"),
        (200, "<html>\n", "read the watch: expected value"),
    ] {
        let lines = cluster.a.log().len();
        cluster.server.faults(|faults| faults.proxy = Some(("watch", code, body)));
        cluster.server.kill();
        cluster.server.revive();
        cluster.a.until(said, || cluster.a.log()[lines..].contains(said));
        cluster.server.faults(|faults| faults.proxy = None);
        add_new(&cluster);
        cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
        remove_new(&cluster);
        cluster.a.has_routes(&expected);
    }
}

/// Lists come from the API server's cache, and only if the changes since are lost.
#[test]
fn a_reset_costs_no_list() {
    let cluster = Cluster::started("--longest-pause 1");
    let expected = ways(&cluster);
    let lists = || -> Vec<String> {
        let requests = cluster.server.requests();
        let lists = requests.iter().filter(|request| request.verb == "list");
        lists.map(|list| list.query.get("resourceVersion").cloned().unwrap_or_default()).collect()
    };
    assert_eq!(lists(), ["0"; 3]);
    cluster.server.kill();
    add_new(&cluster);
    cluster.server.revive();
    cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
    remove_new(&cluster);
    cluster.a.has_routes(&expected);
    assert_eq!(lists().len(), 3);
    // The history is gone.
    cluster.server.kill();
    add_new(&cluster);
    cluster.store.forget();
    cluster.server.revive();
    cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
    let lists = wait("new lists", lists, |lists| lists.len() >= 6);
    assert!(lists[3..].iter().all(|version| version.parse::<u64>().unwrap() > 0), "{lists:?}");
}

#[test]
fn watches_that_say_nothing_or_too_much() {
    let mut cluster = Cluster::new();
    for member in cluster.members_mut() {
        member.start("--watch-idle 2 --longest-pause 1");
    }
    cluster.settled();
    let expected = ways(&cluster);
    let with_new = [&expected[..], &ways_to_new()].concat();
    // The history is gone while the watch runs, and while it says nothing.
    cluster.store.forget();
    add_new(&cluster);
    cluster.a.has_routes(&with_new);
    cluster.server.faults(|faults| faults.mute = true);
    remove_new(&cluster);
    cluster.store.forget();
    // The watch stays mute: the change is in the next list.
    cluster.a.has_routes(&expected);
    cluster.server.faults(|faults| faults.mute = false);
    add_new(&cluster);
    cluster.a.has_routes(&with_new);
    // Short watches and many bookmarks change nothing.
    cluster.server.faults(|faults| {
        (faults.longest_watch, faults.bookmarks) = (Duration::from_secs(1), Duration::from_millis(50))
    });
    remove_new(&cluster);
    cluster.store.forget();
    let before = watches(&cluster.server);
    wait("new watches", || watches(&cluster.server), |now| *now >= before + 6);
    unchanged(&cluster.a, &expected);
    add_new(&cluster);
    cluster.a.has_routes(&with_new);
}

/// The server accepts connections and never answers.
#[test]
fn a_server_that_hangs() {
    let cluster = Cluster::started("--longest-pause 1");
    let expected = ways(&cluster);
    cluster.server.faults(|faults| faults.hang = true);
    cluster.server.kill();
    cluster.server.revive();
    asks_again(&cluster);
    add_new(&cluster);
    unchanged(&cluster.a, &expected);
    cluster.server.faults(|faults| faults.hang = false);
    cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
}

#[test]
fn a_token_that_expires() {
    let cluster = Cluster::started("--longest-pause 1");
    let expected = ways(&cluster);
    cluster.server.faults(|faults| faults.token = Some("second".to_owned()));
    cluster.server.kill();
    cluster.server.revive();
    asks_again(&cluster);
    unchanged(&cluster.a, &expected);
    add_new(&cluster);
    for member in cluster.members() {
        member.node.write_file(TOKEN, "second").unwrap();
    }
    cluster.a.has_routes(&[&expected[..], &ways_to_new()].concat());
    let tokens: Vec<_> = cluster.server.requests().into_iter().filter_map(|request| request.token).collect();
    assert!(tokens.contains(&"first".to_owned()) && tokens.contains(&"second".to_owned()));
}

/// The daemons change to the second API server. At rest they send no requests.
#[test]
fn two_servers() {
    let mut cluster = Cluster::new();
    let other = serve(&cluster.hub, &cluster.store, OTHER);
    for member in cluster.members_mut() {
        member.start(&format!("--api-server {API},{OTHER} --longest-pause 1 --health off"));
    }
    cluster.settled();
    let expected = ways(&cluster);
    assert!(other.requests().iter().all(|request| request.verb == "create"), "{:?}", other.requests());
    cluster.server.kill();
    add_new(&cluster);
    let with_new = [&expected[..], &ways_to_new()].concat();
    cluster.a.has_routes(&with_new);
    wait("all nodes at the other server", || watches(&other), |watches| *watches >= 3);
    // The watches run.
    let before = other.requests().len();
    sleep(Duration::from_secs(3));
    assert_eq!(other.requests().len(), before, "{:?}", other.requests());
    // Back.
    cluster.server.revive();
    other.kill();
    remove_new(&cluster);
    cluster.a.has_routes(&expected);
    // The only objects that a daemon writes are Events.
    let all = [cluster.server.requests(), other.requests()].concat();
    let writes = |verb| !["get", "list", "watch"].contains(&verb);
    let written: Vec<_> =
        all.iter().filter(|request| writes(request.verb)).map(|request| &request.path).collect();
    assert!(written.iter().all(|path| path.ends_with("/events")), "{written:?}");
}

fn watches(server: &ApiServer) -> usize {
    server.requests().iter().filter(|request| request.verb == "watch").count()
}
