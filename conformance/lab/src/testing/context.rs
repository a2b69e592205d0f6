//! A node with one plugin under test.

use std::path::{Path, PathBuf};

use cni_runner::{Attachment, Exec, Output};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use super::{ErrorObject, Expect as _, PluginDir, succeed, succeed_silently};
use crate::{KillPoint, Node, NodeRuntime, Place, Pod, Snapshot, TIMEOUT, namespaces};

/// A node of its own and the plugin under test. Clones share the node.
#[derive(Debug, Clone)]
pub struct TestContext {
    /// The node.
    pub node: Node,
    /// The plugin that calls start.
    pub plugin: PathBuf,
    /// CNI_PATH.
    pub path: String,
    /// More variables for every call.
    pub env: Vec<(String, String)>,
    /// Keeps the folder.
    pub plugins: PluginDir,
}

impl TestContext {
    /// A new node.
    pub fn new(plugins: PluginDir) -> TestContext {
        let (plugin, path) = (plugins.plugin().to_owned(), plugins.path().display().to_string());
        TestContext { node: Node::new().unwrap(), plugin, path, env: Vec::new(), plugins }
    }

    /// The same node with other plugins.
    #[must_use]
    pub fn with_plugins(&self, plugins: PluginDir) -> TestContext {
        let (plugin, path) = (plugins.plugin().to_owned(), plugins.path().display().to_string());
        TestContext { node: self.node.clone(), plugin, path, env: self.env.clone(), plugins }
    }

    /// A runtime on the node with these plugins.
    pub fn runtime(&self) -> NodeRuntime<'_> {
        let mut runtime = self.node.runtime([self.plugins.path()]);
        runtime.runtime.env.extend(self.env.iter().cloned());
        runtime
    }

    /// The same node and plugins, which look for programs only in this folder.
    #[must_use]
    pub fn with_programs(&self, dir: &Path) -> TestContext {
        let mut ctx = self.clone();
        ctx.env.push(("PATH".to_owned(), dir.display().to_string()));
        ctx
    }

    /// Makes a network namespace.
    pub fn pod(&self, name: &str) -> Pod {
        self.node.pod(name).unwrap()
    }

    /// A call of the plugin, not yet made.
    pub fn exec(&self, verb: &str, attachment: &Attachment, config: &Value) -> Exec {
        let mut exec = Exec::new(&self.plugin, verb)
            .attachment(attachment)
            .path(&self.path)
            .stdin(config.to_string())
            .timeout(2 * TIMEOUT);
        exec.env.clone_from(&self.env);
        exec
    }

    /// Makes a call with any outcome.
    pub fn call(&self, verb: &str, attachment: &Attachment, config: &Value) -> Output {
        self.node.call(&self.exec(verb, attachment, config)).unwrap()
    }

    /// Makes an ADD that must succeed. Returns its result.
    pub fn add(&self, attachment: &Attachment, config: &Value) -> Value {
        succeed(&self.node, &self.exec("ADD", attachment, config))
    }

    /// Calls a verb that must succeed and print nothing.
    pub fn succeed(&self, verb: &str, attachment: &Attachment, config: &Value) {
        succeed_silently(&self.node, &self.exec(verb, attachment, config));
    }

    /// Makes a CHECK that must succeed.
    pub fn check(&self, attachment: &Attachment, config: &Value) {
        self.succeed("CHECK", attachment, config);
    }

    /// Makes a DEL that must succeed.
    pub fn del(&self, attachment: &Attachment, config: &Value) {
        self.succeed("DEL", attachment, config);
    }

    /// Calls a verb that must fail.
    pub fn fail(&self, verb: &str, attachment: &Attachment, config: &Value) -> ErrorObject {
        self.call(verb, attachment, config).error()
    }

    /// The same node with a program whose ADD is the repair of the plugin.
    #[must_use]
    pub fn repairing(&self, program: &str) -> TestContext {
        TestContext { plugin: program.into(), ..self.clone() }
    }

    /// Makes a damage that CHECK refuses, and repairs it by this program. CHECK then agrees, and a second repair changes
    /// nothing. Returns CHECK's error.
    pub fn mend(
        &self,
        program: &str,
        attachment: &Attachment,
        config: &Value,
        place: &impl Place,
        damage: &str,
    ) -> ErrorObject {
        let (repairing, seen) = (self.repairing(program), || Snapshot::take(place).unwrap());
        place.sh(damage).unwrap();
        let error = self.fail("CHECK", attachment, config);
        let repaired = repairing.call("ADD", attachment, config);
        assert!(repaired.status.success(), "{damage}: {repaired:?}");
        let checked = self.call("CHECK", attachment, config);
        assert!(checked.status.success(), "{damage}: {checked:?}");
        let before = seen();
        repairing.add(attachment, config);
        assert_eq!(before.diff(&seen()), "", "second repair: {damage}");
        error
    }

    /// The kill points of a call. Makes the call to find them.
    pub fn kill_points(&self, verb: &str, attachment: &Attachment, config: &Value) -> Vec<KillPoint> {
        KillPoint::all(&self.node, &self.exec(verb, attachment, config)).unwrap()
    }

    /// Makes a call that is killed at this point.
    pub fn kill(&self, point: &KillPoint, verb: &str, attachment: &Attachment, config: &Value) {
        point.kill(&self.node, &self.exec(verb, attachment, config)).unwrap();
    }

    /// The points between the requests of a call, for [`TestContext::pause`]. Makes the call to find them.
    pub fn pause_points(&self, verb: &str, attachment: &Attachment, config: &Value) -> Vec<KillPoint> {
        KillPoint::requests(&self.node, &self.exec(verb, attachment, config)).unwrap()
    }

    /// Makes a call that stops right after this point until `meanwhile` is done, and must then succeed.
    pub fn pause(
        &self,
        point: &KillPoint,
        verb: &str,
        attachment: &Attachment,
        config: &Value,
        meanwhile: impl FnOnce() + Send,
    ) {
        let status = point.pause(&self.node, &self.exec(verb, attachment, config), meanwhile).unwrap();
        assert!(status.success(), "{verb} that stopped {point}: {status}");
    }

    /// The addresses that host-local has reserved on this network, in the default folder.
    pub fn reservations(&self, network: &str) -> Vec<String> {
        let mut names = self.node.list_dir(format!("/var/lib/cni/networks/{network}")).unwrap();
        names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
        names
    }

    /// The node's state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.node).unwrap()
    }
}

/// Panics without root. For tests that need root for something else than a [`Node`], which checks it itself.
pub fn require_root() {
    assert!(namespaces::is_root(), "{}", namespaces::NEEDS_ROOT);
}

/// Runs a closure in a new thread in a new network namespace. Processes that it starts are in the namespace too.
pub fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    require_root();
    namespaces::in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

/// Panics if the place differs from the snapshot.
pub fn assert_unchanged(place: &impl Place, before: &Snapshot, what: &str) {
    assert_eq!(before.diff(&Snapshot::take(place).unwrap()), "", "{what}");
}
