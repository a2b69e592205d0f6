//! A test node with the plugins, and calls of the bridge plugin on it.

use std::path::PathBuf;
use std::time::Duration;

use cni_lab::{Client, Node, Place, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Exec, Output};
use serde_json::Value;

use super::Stub;

/// Snapshot lines of objects that belong to the network, not to an attachment: the bridge of
/// [`super::config`] with its addresses and routes, forwarding, and host-local's bookkeeping. A failed ADD
/// and a DEL leave them.
pub(crate) const SHARED: [&str; 11] = [
    "link: br0 ",
    "address: br0 ",
    "dev=br0",
    "ip_forward",
    "all/forwarding",
    "last_reserved_ip.",
    "/lock 0",
    "/var/lib/cni/networks/ ",
    "/var/lib/cni/networks/net/ ",
    "/.ferrule/ ",
    "/.ferrule/net/ ",
];

/// A test node of its own, and the directories with its plugins.
pub(crate) struct TestContext {
    pub(crate) node: Node,
    pub(crate) bins: PathBuf,
    /// CNI_PATH.
    pub(crate) path: String,
}

impl TestContext {
    /// A node with our plugins.
    pub(crate) fn new() -> TestContext {
        let bins = bin_dir().unwrap();
        let path = bins.display().to_string();
        TestContext { node: Node::new().unwrap(), bins, path }
    }

    /// A node with our plugins and the IPAM plugin `stub`.
    pub(crate) fn with_stub(stub: &Stub) -> TestContext {
        let mut ctx = TestContext::new();
        ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
        ctx
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// A call of the bridge plugin, not yet made.
    pub(crate) fn exec(&self, verb: &str, attachment: &Attachment, config: &Value) -> Exec {
        Exec::new(self.bins.join("bridge"), verb)
            .attachment(attachment)
            .path(&self.path)
            .stdin(config.to_string())
            .timeout(Duration::from_secs(30))
    }

    pub(crate) fn call(&self, verb: &str, attachment: &Attachment, config: &Value) -> Output {
        self.node.call(&self.exec(verb, attachment, config)).unwrap()
    }

    /// Makes an ADD that must succeed. Returns its result.
    pub(crate) fn add(&self, attachment: &Attachment, config: &Value) -> Value {
        let output = self.call("ADD", attachment, config);
        assert!(output.success(), "ADD of {attachment:?} failed: {}", describe(&output));
        output.document().unwrap()
    }

    /// Calls a verb that must succeed and print nothing.
    pub(crate) fn succeed(&self, verb: &str, attachment: &Attachment, config: &Value) {
        let output = self.call(verb, attachment, config);
        assert!(output.success(), "{verb} of {attachment:?} failed: {}", describe(&output));
        assert_eq!(output.stdout_text(), "", "stdout of {verb}");
    }

    pub(crate) fn check(&self, attachment: &Attachment, config: &Value) {
        self.succeed("CHECK", attachment, config);
    }

    pub(crate) fn del(&self, attachment: &Attachment, config: &Value) {
        self.succeed("DEL", attachment, config);
    }

    /// Calls a verb that must fail with one error object and status 1.
    pub(crate) fn fail(&self, verb: &str, attachment: &Attachment, config: &Value) -> Failure {
        Failure::of(&self.call(verb, attachment, config))
    }

    /// The addresses that host-local has reserved on network `net`.
    pub(crate) fn reservations(&self) -> Vec<String> {
        let mut names = self.node.list_dir("/var/lib/cni/networks/net").unwrap();
        names.retain(|name| name.starts_with(|c: char| c.is_ascii_hexdigit()) && name != "lock");
        names
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.node).unwrap()
    }
}

/// The error object of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u64,
    pub(crate) msg: String,
    pub(crate) details: String,
}

impl Failure {
    pub(crate) fn of(output: &Output) -> Failure {
        assert_eq!(output.status.code(), Some(1), "{}", describe(output));
        let object = output.document().unwrap_or_else(|error| panic!("{error}: {}", describe(output)));
        assert!(object["cniVersion"].is_string(), "{object}");
        Failure {
            code: object["code"].as_u64().unwrap(),
            msg: object["msg"].as_str().unwrap().to_owned(),
            details: object["details"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Checks the code, and that the message or the details contain `text`.
    pub(crate) fn expect(&self, code: u64, text: &str) {
        let matches = self.code == code && (self.msg.contains(text) || self.details.contains(text));
        assert!(matches, "expected {text:?} with code {code}, got {self:?}");
    }
}

fn describe(output: &Output) -> String {
    format!("{}\nstdout: {}\nstderr: {}", output.status, output.stdout_text(), output.stderr_text())
}

/// Waits until no address of the node and the client is tentative: they solicit each other from their
/// link-local addresses, which cannot be used during duplicate address detection.
pub(crate) fn wait_for_dad(ctx: &TestContext, client: &Client) {
    let is_ready = || {
        let tentative = "ip -6 address show tentative";
        ctx.node.sh(tentative).unwrap().is_empty() && client.sh(tentative).unwrap().is_empty()
    };
    assert!(eventually(TIMEOUT, is_ready));
}

/// Panics if the place differs from the snapshot.
pub(crate) fn assert_unchanged<P: Place>(place: &P, before: &Snapshot, what: &str) {
    let difference = before.diff(&Snapshot::take(place).unwrap());
    assert_eq!(difference, "", "{what}");
}

/// Panics if the node differs from the snapshot, apart from [`SHARED`].
pub(crate) fn assert_only_shared_changed(ctx: &TestContext, before: &Snapshot, what: &str) {
    let difference = before.clone().ignoring(&SHARED).diff(&ctx.snapshot().ignoring(&SHARED));
    assert_eq!(difference, "", "{what}");
}
