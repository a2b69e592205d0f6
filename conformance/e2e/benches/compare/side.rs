//! One of the plugin folders, with the names and addresses that its plugins use on the node.

use std::path::PathBuf;

use cni_runner::Exec;

/// A plugin folder and its names on the node. The names of all sides have the same length, so that all get
/// configurations of the same size.
#[derive(Clone)]
pub(crate) struct Side {
    /// A name of four letters.
    pub(crate) name: &'static str,
    /// What the report calls it.
    pub(crate) label: String,
    /// From 1 to 4.
    pub(crate) number: u8,
    /// Whether the plugins are Ferrule's and not the reference's.
    pub(crate) is_ferrule: bool,
    /// The folder of the plugins.
    pub(crate) dir: PathBuf,
    /// The value of GOMAXPROCS for its plugins, if it is set: how many threads Go's scheduler uses.
    pub(crate) go_threads: Option<u16>,
    /// Whether one `chain` runs the plugins.
    pub(crate) is_folded: bool,
    /// The namespace of its pods in Kubernetes. Without one the list has no `policy`.
    pub(crate) namespace: Option<&'static str>,
}

impl Side {
    pub(crate) fn ferrule(name: &'static str, label: &str, number: u8, dir: PathBuf) -> Side {
        Side {
            name,
            label: label.to_owned(),
            number,
            is_ferrule: true,
            dir,
            go_threads: None,
            is_folded: false,
            namespace: None,
        }
    }

    pub(crate) fn reference(number: u8, dir: PathBuf) -> Side {
        Side { is_ferrule: false, ..Side::ferrule("them", "Go", number, dir) }
    }

    /// The same plugins in one `chain`.
    pub(crate) fn folded(&self) -> Side {
        Side { name: "fold", label: "chain".to_owned(), number: 4, is_folded: true, ..self.clone() }
    }

    /// A program of this side.
    pub(crate) fn program(&self, program: &str, verb: &str) -> Exec {
        let exec = Exec::new(self.dir.join(program), verb);
        match self.go_threads {
            Some(threads) => exec.env("GOMAXPROCS", threads.to_string()),
            None => exec,
        }
    }

    /// The name of the network and of the pod; also the container ID.
    pub(crate) fn network(&self) -> String {
        format!("bench-{}", self.name)
    }

    pub(crate) fn bridge(&self) -> String {
        format!("cni-{}", self.name)
    }

    /// A link of the node for plugins that need one: a parent, or a device that moves into the pod.
    pub(crate) fn device(&self) -> String {
        format!("nic-{}", self.name)
    }

    /// The first two numbers of every address.
    pub(crate) fn net16(&self) -> String {
        format!("10.{}", self.number)
    }

    /// host-local's `dataDir`.
    pub(crate) fn data_dir(&self) -> String {
        format!("/var/lib/cni/{}", self.name)
    }

    /// The first host port of the measured pods; each side has 4,000 of them.
    pub(crate) fn host_port(&self) -> u16 {
        44_000 + 4_000 * u16::from(self.number)
    }
}
