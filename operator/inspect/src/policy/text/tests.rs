use super::super::services::Service;
use super::super::verdict::{Verdict, Word};
use super::*;

#[test]
fn an_answer_reads_like_this() {
    let by = |entry: &str, misses: &str| By {
        policy: "NetworkPolicy shop/web".into(),
        entry: Some(entry.into()),
        misses: misses.into(),
    };
    let end = |direction, pods: &[&str], allowed, why: &str, by: Vec<By>| End {
        direction,
        pods: pods.iter().map(|pod| pod.to_string()).collect(),
        allowed,
        why: why.into(),
        unreached: by.iter().skip(1).cloned().collect(),
        by,
    };
    let at =
        At { table: "inet ferrule_policy".into(), chain: "c1".into(), rule: 3, rules: 3, sets: Vec::new() };
    let allows = vec!["10.1.0.9 TCP".to_owned()];
    let ruled = Ruled { cause: Cause::Policy, at: Some(at), allows, ..Ruled::default() };
    let flow = Explained {
        from: [10, 1, 0, 2].into(),
        to: [10, 1, 0, 3].into(),
        port: 8080,
        verdict: Verdict {
            verdict: Word::Denied,
            ends: vec![
                end(Direction::Egress, &["shop/client"], Some(true), "no policy", Vec::new()),
                end(
                    Direction::Ingress,
                    &[],
                    Some(false),
                    "nothing",
                    vec![by("ingress[0]", "no peer"), by("ingress[1]", "")],
                ),
            ],
            warnings: vec!["they differ".into()],
        },
        kernel: Some(ruled.clone()),
        api: None,
        path: vec!["a pod of this node to elsewhere".into()],
        notes: vec!["n1".into()],
    };
    let backends = ["10.1.0.3:8080".parse().unwrap()].into();
    let service = Some(Service {
        name: "shop/web".into(),
        place: "table ip kube-proxy".into(),
        backends,
        ..Service::default()
    });
    let explanation = Explanation {
        schema: 1,
        protocol: "TCP".into(),
        service,
        flows: vec![flow.clone(), Explained { to: [10, 1, 0, 4].into(), ..flow }],
        notes: vec!["n2".into()],
        failures: vec!["f".into()],
    };
    let expected = "\
a Service shop/web, in table ip kube-proxy: 10.1.0.3:8080
TCP port 8080 from shop/client (10.1.0.2) to 10.1.0.3: denied
  egress: allowed: no policy
  ingress: denied: nothing
    NetworkPolicy shop/web: ingress[0]: no peer
    NetworkPolicy shop/web: ingress[1]
    not reached: NetworkPolicy shop/web: ingress[1]
  warning: they differ
  kernel: the last rule of chain c1 of table inet ferrule_policy drops it
    it allows 10.1.0.9 TCP
  path: a pod of this node to elsewhere
  note: n1
TCP port 8080 from shop/client (10.1.0.2) to 10.1.0.4: denied
  for the same reasons
note: n2
";
    assert_eq!(text(&explanation, Style::default()), expected);
    assert_eq!(explanation.word(), Word::Denied);
    for (cause, said) in [
        (Cause::NotEnforced, "no policies are enforced"),
        (Cause::Passes, "no rule is for it"),
        (Cause::Itself, "always reaches itself"),
        (Cause::Undecided, "not decided yet"),
        (Cause::EndedPod, "has ended"),
        (Cause::EndedFlow, "ended this flow"),
        (Cause::Other, "drops it"),
        (Cause::Unknown, "not understood"),
    ] {
        assert!(of_kernel(&Ruled { cause, ..ruled.clone() }).contains(said), "{cause:?}");
    }
}
