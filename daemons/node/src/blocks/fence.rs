//! What a Node says about its machine. Pure.

use ferrule_blocks::ledger::{Claim, FENCED};
use serde::Deserialize;

use crate::plan_file::Identity;

/// The fields of a Node that count.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    node_info: Info,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    #[serde(rename = "machineID")]
    machine: String,
    #[serde(rename = "systemUUID")]
    product: String,
}

impl Node {
    /// Whether an operator says that its machine is off.
    pub(super) fn is_fenced(&self) -> bool {
        self.spec.taints.iter().flatten().any(|taint| taint.key == FENCED)
    }

    /// Whether its machine has made the claim: another one may have the Node's name by now. The kubelet may write the product's
    /// identifier in other letters than the kernel, or take another one.
    pub(super) fn has_made(&self, claim: &Claim) -> bool {
        let Info { machine, product } = &self.status.node_info;
        let spellings = [product.clone(), product.to_lowercase(), product.to_uppercase(), String::new()];
        !machine.is_empty()
            && spellings.iter().any(|product| Identity::hash([machine, product]) == claim.machine)
    }
}

#[cfg(test)]
mod tests {
    use ferrule_blocks::block::Block;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_taint_on_the_same_machine_counts() {
        let claim = Claim {
            block: Block::of([10, 0, 0, 1].into(), 1.try_into().unwrap()),
            uid: String::new(),
            version: String::new(),
            node: "n".to_owned(),
            store: String::new(),
            network: String::new(),
            boot: String::new(),
            machine: Identity::hash(["m1", "ab-1"]),
            slot: 0,
        };
        for (taint, machine, product, is_fenced, has_made) in [
            (FENCED, "m1", "ab-1", true, true),
            (FENCED, "m1", "AB-1", true, true),
            (FENCED, "m2", "ab-1", true, false),
            (FENCED, "m1", "ab-2", true, false),
            (FENCED, "", "", true, false),
            ("node.kubernetes.io/unreachable", "m1", "ab-1", false, true),
        ] {
            let node = json!({"spec": {"taints": [{"key": "other"}, {"key": taint, "effect": "NoExecute"}]},
                "status": {"nodeInfo": {"machineID": machine, "systemUUID": product}}});
            let node: Node = serde_json::from_value(node).unwrap();
            assert_eq!(
                (node.is_fenced(), node.has_made(&claim)),
                (is_fenced, has_made),
                "{taint} {machine} {product}"
            );
        }
        let bare: Node = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert!(!bare.is_fenced() && !bare.has_made(&claim));
    }
}
