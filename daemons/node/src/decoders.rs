//! The decoders of what API servers, programs and other nodes send, as functions of any bytes. For the fuzzer.

use ferrule_kernel::ip::IpFamily;
use ferrule_node_policy::Compiler;
use ferrule_policy_kit::ask::{Answer, Request};
use serde_json::json;

use crate::policy::objects::{Kind, Listed};
use crate::{api, policy, probe};

pub use crate::blocks::decoders::objects as block_objects;

/// A small cluster.
const OBJECTS: [(Kind, &str); 5] = [
    (Kind::Namespaces, r#"{"metadata":{"name":"shop","labels":{"team":"shop"}}}"#),
    (
        Kind::Pods,
        r#"{"metadata":{"namespace":"shop","name":"web","labels":{"app":"web"}},"spec":{"nodeName":"n1","containers":[{"ports":[{"name":"http","containerPort":80}]}]},"status":{"podIPs":[{"ip":"10.244.1.2"},{"ip":"fd00:1::2"}]}}"#,
    ),
    (
        Kind::Pods,
        r#"{"metadata":{"namespace":"shop","name":"far"},"spec":{"nodeName":"n2"},"status":{"podIP":"10.244.2.3"}}"#,
    ),
    (
        Kind::Policies,
        r#"{"metadata":{"namespace":"shop","name":"web"},"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"client"}}},{"ipBlock":{"cidr":"10.244.0.0/16","except":["10.244.2.0/24"]}}],"ports":[{"port":"http"}]}]}}"#,
    ),
    (
        Kind::ClusterPolicies,
        r#"{"metadata":{"name":"dns"},"spec":{"tier":"Admin","priority":5,"subject":{"namespaces":{}},"egress":[{"name":"dns","action":"Accept","to":[{"networks":["fd00::/16"]}],"protocols":[{"udp":{"destinationPort":{"number":53}}}]},{"action":"Pass","to":[{"namespaces":{}}]}]}}"#,
    ),
];

/// A list or a watch of one kind, which the first byte names, and the rules that follow.
pub fn objects(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match Kind::ALL.get(usize::from(*kind) % (Kind::ALL.len() + 1)) {
        Some(kind) => drop(cluster(&[(*kind, bytes)]).update()),
        None => api::decoders::nodes(bytes),
    }
}

/// A question of `ferrule` about policies. It can read the answer.
pub fn policy_question(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let answer = policy::answer(&request.ask, &cluster(&[]));
        assert_eq!(serde_json::from_value::<Answer>(json!(answer)).ok(), Some(answer));
    }
}

/// The answer to an echo request.
pub fn echo(bytes: &[u8]) {
    for family in IpFamily::ALL {
        let _ = probe::answer(family, bytes, &[7; 8]);
    }
}

/// [`OBJECTS`], and what lists and watches say of them.
fn cluster(texts: &[(Kind, &[u8])]) -> Compiler {
    let (mut compiler, mut listed) = (Compiler::new(false), Listed::default());
    let mut read = |kind, text: &[u8]| {
        api::decoders::objects(kind, text, &mut |told| listed.apply(told, &mut compiler));
    };
    for (kind, object) in OBJECTS {
        read(kind, format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n").as_bytes());
    }
    texts.iter().for_each(|(kind, text)| read(*kind, text));
    compiler
}
