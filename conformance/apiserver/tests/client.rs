//! The server as the crate `kube` sees it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::TcpStream;
use std::time::Duration;

use ferrule_fake_apiserver::{ApiServer, Store};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::{Client, Config, Error};
use serde_json::{Value, json};
use tokio::time::timeout;

const NODES: &str = "/api/v1/nodes";
const LIMIT: Duration = Duration::from_secs(60);

fn cluster() -> (Store, ApiServer) {
    let store = Store::default();
    for name in ["a", "b", "c"] {
        store.put(&path(name), node("10.0.0.0/24"));
    }
    let server = ApiServer::start(&store, ([127, 0, 0, 1], 0).into());
    (store, server)
}

fn path(name: &str) -> String {
    format!("{NODES}/{name}")
}

fn node(cidr: &str) -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"labels": {"for": "test"}}, "spec": {"podCIDR": cidr},
        "status": {"phase": "old"}})
}

fn client(server: &ApiServer) -> Client {
    Client::try_from(Config::new(server.url().parse().unwrap())).unwrap()
}

fn nodes(server: &ApiServer) -> Api<Node> {
    Api::all(client(server))
}

fn code<T: std::fmt::Debug>(answer: Result<T, Error>) -> u16 {
    match answer.unwrap_err() {
        Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// The events of a watch until its end, as `TYPE name`, `BOOKMARK revision` or `ERROR code`.
async fn watched(api: &Api<Node>, params: &WatchParams, from: &str, count: usize) -> Vec<String> {
    let events = api.watch(params, from).await.unwrap();
    let text = |event| match event {
        WatchEvent::Added(node) => format!("ADDED {}", name(node)),
        WatchEvent::Modified(node) => format!("MODIFIED {}", name(node)),
        WatchEvent::Deleted(node) => format!("DELETED {}", name(node)),
        WatchEvent::Bookmark(bookmark) => format!("BOOKMARK {}", bookmark.metadata.resource_version),
        WatchEvent::Error(status) => format!("ERROR {}", status.code),
    };
    timeout(LIMIT, events.map_ok(text).take(count).try_collect()).await.unwrap().unwrap()
}

fn name(node: Node) -> String {
    node.metadata.name.unwrap()
}

#[tokio::test]
async fn pages_have_one_revision() {
    let (store, server) = cluster();
    let api = nodes(&server);
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(1));
    store.put(&path("aa"), node("10.0.9.0/24"));
    let token = first.metadata.continue_.clone().unwrap();
    let rest = ListParams::default().limit(2).continue_token(&token);
    let second = api.list(&rest).await.unwrap();
    assert_eq!(second.metadata.continue_.unwrap_or_default(), "");
    let revision = second.metadata.resource_version.unwrap();
    assert_eq!(Some(&revision), first.metadata.resource_version.as_ref());
    let names: Vec<String> = first.items.into_iter().chain(second.items).map(name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(watched(&api, &WatchParams::default(), &revision, 1).await, ["ADDED aa"]);
    store.forget();
    assert_eq!(code(api.list(&rest).await), 410);
}

#[tokio::test]
async fn a_watch_sees_each_change_and_ends_in_time() {
    let (store, server) = cluster();
    let api = nodes(&server);
    let begin = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    store.patch(&path("b"), &json!({"metadata": {"labels": {"for": "nothing"}}}));
    store.delete(&path("c"));
    store.put(&path("d"), node("10.0.3.0/24"));
    let short = WatchParams::default().timeout(2);
    let events = watched(&api, &short, &begin, 9).await;
    let newest = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    assert_eq!(events, ["MODIFIED b", "DELETED c", "ADDED d", &format!("BOOKMARK {newest}")]);
    let labels = short.clone().labels("for=test");
    assert_eq!(watched(&api, &labels, &begin, 3).await, ["DELETED b", "DELETED c", "ADDED d"]);
    let fields = short.fields("metadata.name=b");
    assert_eq!(watched(&api, &fields, "0", 1).await, ["ADDED b"]);
    server.faults(|faults| faults.bookmarks = Duration::from_millis(10));
    let mark = format!("BOOKMARK {newest}");
    assert_eq!(watched(&api, &WatchParams::default(), &newest, 2).await, [&*mark, &*mark]);
}

#[tokio::test]
async fn a_streamed_list_ends_with_a_bookmark() {
    let (_store, server) = cluster();
    let events = watched(&nodes(&server), &WatchParams::default().initial_events(), "0", 4).await;
    assert_eq!(events[..3], ["ADDED a", "ADDED b", "ADDED c"]);
    assert!(events[3].starts_with("BOOKMARK "), "{events:?}");
}

#[tokio::test]
async fn a_forgotten_history_is_gone() {
    let (store, server) = cluster();
    let api = nodes(&server);
    let list = api.list(&ListParams::default()).await.unwrap();
    let begin = list.metadata.resource_version.unwrap();
    let mut running = api.watch(&WatchParams::default(), &begin).await.unwrap().boxed();
    store.forget();
    let event = timeout(LIMIT, running.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Error(status) if status.code == 410));
    assert!(timeout(LIMIT, running.next()).await.unwrap().is_none());
    assert_eq!(watched(&api, &WatchParams::default(), &begin, 1).await, ["ERROR 410"]);
}

#[tokio::test]
async fn patches_and_conflicts() {
    let (store, server) = cluster();
    let api = nodes(&server);
    let params = PatchParams::default();
    let merge = json!({"metadata": {"annotations": {"x": "1"}}, "spec": {"podCIDR": null}, "status": {"phase": "new"}});
    let patched = api.patch("a", &params, &Patch::Merge(&merge)).await.unwrap();
    assert_eq!(patched.metadata.annotations.unwrap()["x"], "1");
    assert_eq!(patched.metadata.generation, Some(2));
    assert_eq!(store.get(&path("a")).unwrap()["spec"], json!({}));
    assert_eq!(store.get(&path("a")).unwrap()["status"]["phase"], "old", "the status has a subresource");
    api.patch_status("a", &params, &Patch::Merge(&merge)).await.unwrap();
    assert_eq!(store.get(&path("a")).unwrap()["status"]["phase"], "new");

    let old = api.get("b").await.unwrap();
    store.patch(&path("b"), &json!({"spec": {"unschedulable": true}}));
    assert_eq!(code(api.replace("b", &PostParams::default(), &old).await), 409);
    let stale =
        json!({"metadata": {"resourceVersion": old.metadata.resource_version}, "spec": {"podCIDR": "::/64"}});
    assert_eq!(code(api.patch("b", &params, &Patch::Merge(&stale)).await), 409);
    api.replace("b", &PostParams::default(), &api.get("b").await.unwrap()).await.unwrap();
    assert_eq!(code(api.create(&PostParams::default(), &old).await), 409);
    assert_eq!(code(api.patch("z", &params, &Patch::Merge(&merge)).await), 404);

    let applied = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "z"}, "spec": {"podCIDR": "10.9.0.0/24"}});
    api.patch("z", &PatchParams::apply("test"), &Patch::Apply(&applied)).await.unwrap();
    assert_eq!(code(api.patch("z", &PatchParams::default(), &Patch::Apply(&applied)).await), 400);
    assert_eq!(store.get(&path("z")).unwrap()["spec"]["podCIDR"], "10.9.0.0/24");
}

#[tokio::test]
async fn objects_come_and_go() {
    let (store, server) = cluster();
    let events: Api<Event> = Api::namespaced(client(&server), "default");
    let event = |name: Option<&str>| Event {
        metadata: kube::api::ObjectMeta {
            name: name.map(str::to_owned),
            generate_name: name.is_none().then(|| "made-".to_owned()),
            ..Default::default()
        },
        reason: Some("Test".to_owned()),
        ..Event::default()
    };
    events.create(&PostParams::default(), &event(Some("one"))).await.unwrap();
    let made = events.create(&PostParams::default(), &event(None)).await.unwrap().metadata;
    assert!(made.name.unwrap().starts_with("made-") && made.uid.is_some());
    assert_eq!(store.list("/api/v1/namespaces/default/events").len(), 2);
    assert_eq!(store.list("/api/v1/namespaces/other/events").len(), 0);
    assert_eq!(store.list("/api/v1/events").len(), 2);
    events
        .delete_collection(&DeleteParams::default(), &ListParams::default().fields("reason=Test"))
        .await
        .unwrap();
    assert_eq!(store.list("/api/v1/events").len(), 0);

    let api = nodes(&server);
    let meta = api.get("b").await.unwrap().metadata;
    let delete = async |uid: &Option<String>, resource_version: Option<&str>| {
        let (uid, resource_version) = (uid.clone(), resource_version.map(str::to_owned));
        let preconditions = Some(Preconditions { uid, resource_version });
        api.delete("b", &DeleteParams { preconditions, ..DeleteParams::default() }).await
    };
    assert_eq!(code(delete(&Some("other".into()), None).await), 409);
    assert_eq!(code(delete(&meta.uid, Some("1")).await), 409);
    server.faults(|faults| faults.lost = Some(("delete", 3)));
    // The client asks again after the lost answer, and it was done.
    assert_eq!(code(delete(&meta.uid, meta.resource_version.as_deref()).await), 404);
    server.faults(|faults| faults.lost = None);

    store.patch(&path("a"), &json!({"metadata": {"finalizers": ["test/wait"]}}));
    let deleted = api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(deleted.left().unwrap().metadata.deletion_timestamp.is_some());
    store.patch(&path("a"), &json!({"metadata": {"finalizers": null}}));
    assert_eq!(store.get(&path("a")), None);
}

#[tokio::test]
async fn faults() {
    let (store, server) = cluster();
    let api = nodes(&server);
    let list = async || api.list(&ListParams::default()).await;
    server.faults(|faults| faults.code = Some(500));
    assert_eq!(code(list().await), 500);
    server.faults(|faults| (faults.code, faults.token) = (None, Some("new".to_owned())));
    assert_eq!(code(list().await), 401);
    server.faults(|faults| (faults.token, faults.absent) = (None, vec![NODES.to_owned()]));
    assert_eq!(code(list().await), 404);
    let rule = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]});
    server.faults(|faults| (faults.absent, faults.rules) = (Vec::new(), Some(vec![rule])));
    assert_eq!(code(api.get("a").await), 403);
    assert_eq!(list().await.unwrap().items.len(), 3);
    server.faults(|faults| faults.slow_list = Duration::from_millis(20));
    assert_eq!(list().await.unwrap().items.len(), 3);
    server.faults(|faults| faults.hang = true);
    assert!(timeout(Duration::from_millis(100), list()).await.is_err());
    server.faults(|faults| (faults.hang, faults.rules) = (false, None));

    // A watch that is mute has all to say later.
    let begin = list().await.unwrap().metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &begin).await.unwrap().boxed();
    server.faults(|faults| faults.mute = true);
    store.delete(&path("a"));
    assert!(timeout(Duration::from_millis(100), watch.next()).await.is_err());
    server.faults(|faults| faults.mute = false);
    assert!(matches!(timeout(LIMIT, watch.next()).await, Ok(Some(Ok(WatchEvent::Deleted(_))))));

    let verbs: Vec<&str> = server.requests().iter().map(|request| request.verb).collect();
    assert_eq!(verbs, ["list", "list", "list", "get", "list", "list", "list", "list", "watch"]);
    server.kill();
    assert!(timeout(LIMIT, watch.next()).await.unwrap().is_none_or(|event| event.is_err()));
    assert!(TcpStream::connect(server.address()).is_err());
    // Another server of the same cluster.
    let other = ApiServer::start(&store, ([127, 0, 0, 1], 0).into());
    assert_eq!(nodes(&other).list(&ListParams::default()).await.unwrap().items.len(), 2);
    server.revive();
    assert_eq!(list().await.unwrap().items.len(), 2);
}
