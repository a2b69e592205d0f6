//! A node with the plugin on it.

use std::path::PathBuf;
use std::time::Duration;

use conformance::fixture::{Client, Node, PATIENCE, Place, Pod, Snapshot, bin_dir, eventually};
use conformance::runner::{Attachment, Exec, Output};
use serde_json::Value;

use super::Stub;

/// What belongs to the network and not to an attachment: a failed ADD and a DEL leave it where it is. (The bridge of
/// [`super::config`] with its addresses and routes, forwarding, and what host-local remembers.)
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

/// A node of its own, and the folders where its plugins are.
pub(crate) struct Lab {
    pub(crate) node: Node,
    pub(crate) bins: PathBuf,
    /// CNI_PATH.
    pub(crate) path: String,
}

impl Lab {
    /// With our plugins.
    pub(crate) fn new() -> Lab {
        let bins = bin_dir().unwrap();
        let path = bins.display().to_string();
        Lab { node: Node::new().unwrap(), bins, path }
    }

    /// With our plugins and the IPAM plugin `stub`.
    pub(crate) fn with_stub(stub: &Stub) -> Lab {
        let mut lab = Lab::new();
        lab.path = format!("{}:{}", stub.dir().display(), lab.path);
        lab
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// The bridge plugin, ready to be called.
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

    /// An ADD that succeeds, and its result.
    pub(crate) fn add(&self, attachment: &Attachment, config: &Value) -> Value {
        let output = self.call("ADD", attachment, config);
        assert!(output.success(), "ADD of {attachment:?} failed: {}", said(&output));
        output.document().unwrap()
    }

    /// A verb without a result that succeeds, in silence.
    pub(crate) fn succeed(&self, verb: &str, attachment: &Attachment, config: &Value) {
        let output = self.call(verb, attachment, config);
        assert!(output.success(), "{verb} of {attachment:?} failed: {}", said(&output));
        assert_eq!(output.stdout_text(), "", "{verb} prints nothing");
    }

    pub(crate) fn check(&self, attachment: &Attachment, config: &Value) {
        self.succeed("CHECK", attachment, config);
    }

    pub(crate) fn del(&self, attachment: &Attachment, config: &Value) {
        self.succeed("DEL", attachment, config);
    }

    /// A call that fails as it should: with one error object and status 1.
    pub(crate) fn refused(&self, verb: &str, attachment: &Attachment, config: &Value) -> Refusal {
        Refusal::of(&self.call(verb, attachment, config))
    }

    /// The addresses that host-local has given out on network `net`.
    pub(crate) fn reservations(&self) -> Vec<String> {
        let mut names = self.node.list_dir("/var/lib/cni/networks/net").unwrap();
        names.retain(|name| name.starts_with(|c: char| c.is_ascii_hexdigit()) && name != "lock");
        names
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.node).unwrap()
    }
}

/// What a plugin says when it fails.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) msg: String,
    pub(crate) details: String,
}

impl Refusal {
    pub(crate) fn of(output: &Output) -> Refusal {
        assert_eq!(output.status.code(), Some(1), "{}", said(output));
        let object = output.document().unwrap_or_else(|error| panic!("{error}: {}", said(output)));
        assert!(object["cniVersion"].is_string(), "{object}");
        Refusal {
            code: object["code"].as_u64().unwrap(),
            msg: object["msg"].as_str().unwrap().to_owned(),
            details: object["details"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Checks the code, and that the text is in the message or the details.
    pub(crate) fn expect(&self, code: u64, text: &str) {
        let is_it = self.code == code && (self.msg.contains(text) || self.details.contains(text));
        assert!(is_it, "expected {text:?} with code {code}, not {self:?}");
    }
}

fn said(output: &Output) -> String {
    format!("{}\nstdout: {}\nstderr: {}", output.status, output.stdout_text(), output.stderr_text())
}

/// Waits until the link between the node and a client is usable: its ends have link-local addresses that are not ready at
/// once, and it is from there that hosts ask for each other.
pub(crate) fn settled(lab: &Lab, client: &Client) {
    let is_ready = || {
        let tentative = "ip -6 address show tentative";
        lab.node.sh(tentative).unwrap().is_empty() && client.sh(tentative).unwrap().is_empty()
    };
    assert!(eventually(PATIENCE, is_ready));
}

/// Fails unless the place is what it was.
pub(crate) fn unchanged<P: Place>(place: &P, before: &Snapshot, what: &str) {
    let difference = before.diff(&Snapshot::take(place).unwrap());
    assert_eq!(difference, "", "{what}");
}

/// Fails unless the node is what it was, apart from what is shared.
pub(crate) fn after(lab: &Lab, before: &Snapshot, what: &str) {
    let difference = before.clone().ignoring(&SHARED).diff(&lab.snapshot().ignoring(&SHARED));
    assert_eq!(difference, "", "{what}");
}
