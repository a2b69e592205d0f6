//! Compares the manifests in `examples/kubernetes` and the unit with the program; `tests/manifests.sh` compares overlays and chart with them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use ferrule_node::arguments::{Arguments, Options};
use ferrule_node::cluster::HEALTH_ANNOTATION;
use ferrule_node::conflist::Template;
use ferrule_node::wireguard;
use serde::Deserialize as _;
use serde_json::{Value, json};

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn object(file: &str, kind: &str) -> Value {
    one(file, |object| object["kind"] == kind)
}

fn named_object(file: &str, kind: &str, name: &str) -> Value {
    one(file, |object| object["kind"] == kind && object["metadata"]["name"] == name)
}

fn one(file: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let text = text(file);
    let objects = yaml_serde::Deserializer::from_str(&text).map(|object| Value::deserialize(object).unwrap());
    let mut found: Vec<Value> = objects.filter(is_it).collect();
    assert_eq!(found.len(), 1, "such objects in {file}");
    found.remove(0)
}

const MANIFEST: &str = "examples/kubernetes/ferrule.yaml";

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    items(list).iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// `kubectl apply` takes the file as it is. A release has the same version.
#[test]
fn the_images_are_of_this_version() {
    let pod = pod();
    let containers = ["initContainers", "containers"].iter().flat_map(|key| items(&pod[*key]));
    let images: Vec<&str> = containers.filter_map(|container| container["image"].as_str()).collect();
    let expected = concat!("registry.example/ferrule:", env!("CARGO_PKG_VERSION"));
    assert!(images.len() == 4 && images.iter().all(|image| *image == expected), "{images:?}");
}

fn pod() -> Value {
    object(MANIFEST, "DaemonSet")["spec"]["template"]["spec"].take()
}

fn parsed<'a>(words: impl IntoIterator<Item = &'a str>) -> Options {
    let arguments = Arguments::try_parse_from(["ferrule-node"].into_iter().chain(words)).unwrap();
    assert_eq!(arguments.command, None);
    arguments.options.check().unwrap();
    arguments.options
}

/// The daemon's options, with the values of the ConfigMap.
fn options(container: &Value) -> Options {
    let config = object(MANIFEST, "ConfigMap")["data"].take();
    let mut arguments =
        items(&container["args"]).iter().map(|a| a.as_str().unwrap()).collect::<Vec<_>>().join(" ");
    for (key, value) in config.as_object().unwrap() {
        assert!(arguments.contains(&format!("$({key})")), "no argument has {key}");
        arguments = arguments.replace(&format!("$({key})"), value.as_str().unwrap());
    }
    assert!(!arguments.contains('$'), "{arguments}: the ConfigMap does not have it");
    parsed(arguments.split(' '))
}

#[test]
fn the_daemon_knows_its_options_and_has_its_folders() {
    let pod = pod();
    let node = named(&pod["containers"], "node");
    assert_eq!(node["command"], json!(["/ferrule-node"]));
    let options = options(node);
    assert!(options.no_repair && options.gc_every == 0, "other containers do the housekeeping");
    // The daemon's files outlive the container.
    for file in [&options.conflist, &options.state, &options.wireguard_key] {
        let mounts = items(&node["volumeMounts"]);
        let mount = mounts.iter().find(|mount| file.starts_with(mount["mountPath"].as_str().unwrap()));
        let mount = mount.unwrap_or_else(|| panic!("{} is in no volume", file.display()));
        let volume = named(&pod["volumes"], mount["name"].as_str().unwrap());
        assert_eq!(volume["hostPath"]["path"], mount["mountPath"]);
        assert_ne!(mount["readOnly"], true);
    }
    assert_eq!(named(&node["env"], "NODE_NAME")["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    assert_eq!(node["envFrom"][0]["configMapRef"]["name"], object(MANIFEST, "ConfigMap")["metadata"]["name"]);
}

/// The NICs of claims are attached by the last plugin.
#[test]
fn the_template_with_claims_is_a_template() {
    let template =
        object("examples/overlays/nics/template.yaml", "ConfigMap")["data"]["template.conflist"].take();
    let (folder, text) = (tempfile::tempdir().unwrap(), template.as_str().unwrap());
    let file = folder.path().join("template");
    fs::write(&file, text).unwrap();
    Template::read(&parsed(["--template", file.to_str().unwrap()])).unwrap();
    let plugins = serde_json::from_str::<Value>(text).unwrap()["plugins"].take();
    assert_eq!(items(&plugins).last(), Some(&json!({"type": "claims"})));
}

#[test]
fn the_probes_ask_the_daemons_server() {
    let pod = pod();
    let node = named(&pod["containers"], "node");
    let listen = options(node).listen;
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let expected = json!({"host": listen.ip(), "port": listen.port(), "path": path});
        assert_eq!(node[probe]["httpGet"], expected);
    }
}

#[test]
fn each_container_has_the_rights_that_it_needs_and_no_others() {
    let pod = pod();
    for (key, value) in [
        ("hostNetwork", json!(true)),
        ("hostPID", json!(true)),
        ("automountServiceAccountToken", json!(false)),
        ("priorityClassName", json!("system-node-critical")),
        ("tolerations", json!([{"operator": "Exists"}])),
    ] {
        assert_eq!(pod[key], value, "{key}");
    }
    let housekeeping = object("release/daemonset-housekeeping.yaml", "DaemonSet");
    let housekeeping = &housekeeping["spec"]["template"]["spec"]["containers"];
    let added = |container: &Value| container["securityContext"]["capabilities"]["add"].clone();
    let (install, containers) = (&pod["initContainers"], &pod["containers"]);
    assert_eq!((items(install).len(), items(containers).len()), (1, 3));
    for container in items(install).iter().chain(items(containers)) {
        let name = container["name"].as_str().unwrap();
        let rights = &container["securityContext"];
        assert_eq!(rights["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(rights["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]), "{name}");
        assert_eq!(rights["privileged"], Value::Null, "{name}");
        assert!(container["resources"]["requests"]["memory"].is_string(), "{name}");
        assert_eq!(container["image"], install[0]["image"]);
        let expected = match name {
            "install" => Value::Null,
            "node" => json!(["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"]),
            _ => {
                // Tests run the housekeeping containers with these rights.
                let alone = named(housekeeping, name);
                assert_eq!(container["args"], alone["args"]);
                added(alone)
            }
        };
        assert_eq!(added(container), expected, "{name}");
        let mounts = items(&container["volumeMounts"]);
        assert_eq!(mounts.iter().any(|mount| mount["name"] == "token"), name == "node", "{name}");
        for mount in mounts {
            named(&pod["volumes"], mount["name"].as_str().unwrap());
        }
    }
}

#[test]
fn the_service_account_may_do_what_the_daemon_does_and_nothing_else() {
    let account = object(MANIFEST, "ServiceAccount")["metadata"].take();
    assert_eq!(pod()["serviceAccountName"], account["name"]);
    let (name, namespace) = (account["name"].as_str().unwrap(), account["namespace"].as_str().unwrap());
    // The requests of src/api/client.rs.
    for (kind, resource, verbs) in
        [("ClusterRole", "nodes", json!(["list", "patch", "watch"])), ("Role", "events", json!(["create"]))]
    {
        let of = |kind: &str| named_object(MANIFEST, kind, name);
        let (role, binding) = (of(kind), of(&format!("{kind}Binding")));
        assert_eq!(role["rules"], json!([{"apiGroups": [""], "resources": [resource], "verbs": verbs}]));
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(binding["metadata"]["namespace"], role["metadata"]["namespace"]);
        let subject = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        assert_eq!(binding["subjects"], subject);
    }
    // What src/api/decode asks for, with --policy on.
    let of = |kind| named_object(MANIFEST, kind, "ferrule-node-policy");
    let (role, binding) = (of("ClusterRole"), of("ClusterRoleBinding"));
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let reads = ["list", "watch"];
    let expected = [
        rule("", &["namespaces", "pods"], &reads),
        rule("networking.k8s.io", &["networkpolicies"], &reads),
        rule("policy.networking.k8s.io", &["clusternetworkpolicies"], &reads),
        json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": ["clusternetworkpolicies.policy.networking.k8s.io"], "verbs": ["get"]}),
        rule("", &["events"], &["create"]),
    ];
    assert_eq!(role["rules"], json!(expected));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(binding["subjects"], named_object(MANIFEST, "ClusterRoleBinding", name)["subjects"]);
    // Without the binding or with another name the policy would let everything through.
    let policy = object(MANIFEST, "ValidatingAdmissionPolicy");
    let who = format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'");
    assert_eq!(policy["spec"]["matchConditions"][0]["expression"], who);
    let own = named(&policy["spec"]["variables"], "own")["expression"].as_str().unwrap();
    for annotation in [HEALTH_ANNOTATION, wireguard::ANNOTATION] {
        assert!(own.contains(&format!("'{annotation}'")), "{own}");
    }
    let binding = object(MANIFEST, "ValidatingAdmissionPolicyBinding");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
}

#[test]
fn the_unit_starts_the_daemon() {
    let unit = text("daemons/node/systemd/ferrule-node.service");
    let values =
        |key: &'static str| unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='));
    let command = values("ExecStart").next().unwrap();
    let options = parsed(command.split(' ').skip(1).filter(|word| !word.starts_with('$')));
    assert!(options.no_repair && options.gc_every == 0, "other units do the housekeeping");
    assert_eq!(options.kubeconfig.as_deref(), values("ConditionPathExists").next().map(Path::new));
    for (folder, key, file) in [
        ("/etc", "ConfigurationDirectory", options.conflist),
        ("/run", "RuntimeDirectory", options.state),
        ("/var/lib", "StateDirectory", options.wireguard_key),
    ] {
        let may_write = PathBuf::from(folder).join(values(key).next().unwrap());
        assert!(file.starts_with(&may_write), "{} is not in {}", file.display(), may_write.display());
    }
}
