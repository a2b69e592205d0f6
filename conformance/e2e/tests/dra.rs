//! The objects in `examples/dra/` by the rules of the Kubernetes API: the fields of each version, and the limits of
//! `k8s.io/api/resource/*/types.go`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const DRIVER: &str = "nic.ferrule.dev";
/// The longest list of selectors, configurations or requests.
const LONGEST_LIST: usize = 32;
/// The longest expression and the longest parameters in bytes.
const LONGEST_TEXT: usize = 10 * 1024;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dra")
}

/// An object of the API. A field that the version does not have is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Object<S> {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: S,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

/// A DeviceClass of v1.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Class {
    #[serde(default)]
    selectors: Vec<Selector>,
    #[serde(default)]
    config: Vec<Config>,
    extended_resource_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selector {
    cel: Cel,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cel {
    expression: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    opaque: Opaque,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Opaque {
    driver: String,
    parameters: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    spec: Claim,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    devices: Devices,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Devices {
    requests: Vec<Request>,
}

/// A request of v1.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    name: String,
    exactly: Exactly,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Exactly {
    device_class_name: String,
    #[serde(default)]
    selectors: Vec<Selector>,
    allocation_mode: Option<String>,
    count: Option<u32>,
    admin_access: Option<bool>,
}

fn read<S: DeserializeOwned>(file: &str, version: &str, kind: &str) -> (String, S) {
    let text = fs::read_to_string(folder().join(file)).unwrap();
    let object: Object<S> = yaml_serde::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert_eq!(
        (object.api_version, object.kind),
        (format!("resource.k8s.io/{version}"), kind.to_owned()),
        "{file}"
    );
    assert!(is_subdomain(&object.metadata.name, 253), "{file}");
    (object.metadata.name, object.spec)
}

fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_subdomain(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.split('.').all(is_label)
}

/// The attributes of the table in README.md, with their types.
fn attributes() -> Vec<(String, String)> {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    readme.lines().filter_map(row).collect()
}

/// Each attribute that the expression compares exists, and the expression asks for it with `has()` before.
fn check_expression(expression: &str) {
    assert!(expression.len() <= LONGEST_TEXT);
    let used = expression.split("device.attributes[\"").skip(1).map(|rest| {
        let (domain, rest) = rest.split_once("\"].").unwrap();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        (domain, &rest[..end])
    });
    let mut asked = Vec::new();
    for (domain, name) in used {
        let whole = format!("{domain}/{name}");
        assert!(attributes().iter().any(|(known, _)| *known == whole), "{whole} is not in README.md");
        let text = format!("has(device.attributes[\"{domain}\"].{name})");
        assert!(asked.contains(&whole) || expression.contains(&text), "no {text}");
        let first = expression.find(&format!("device.attributes[\"{domain}\"].{name}")).unwrap();
        assert_eq!(expression.find(&text).unwrap() + "has(".len(), first, "{whole} is used before has()");
        asked.push(whole);
    }
    assert_eq!(expression.matches('(').count(), expression.matches(')').count());
}

fn check_selectors(selectors: &[Selector]) {
    assert!(selectors.len() <= LONGEST_LIST);
    selectors.iter().for_each(|selector| check_expression(&selector.cel.expression));
}

fn check_class(name: &str, selectors: &[Selector], config: &[Config]) {
    assert_eq!(name, DRIVER);
    assert!(!selectors.is_empty() && config.len() <= LONGEST_LIST);
    check_selectors(selectors);
    for Config { opaque } in config {
        assert!(opaque.driver == DRIVER && is_subdomain(&opaque.driver, 63));
        assert!(opaque.parameters.to_string().len() <= LONGEST_TEXT);
        // By convention, so that a driver can have several versions.
        for key in ["apiVersion", "kind"] {
            assert!(opaque.parameters[key].is_string(), "{key}");
        }
    }
}

fn check_requests(requests: &[Request]) {
    assert!((1..=LONGEST_LIST).contains(&requests.len()));
    for Request { name, exactly } in requests {
        assert!(is_label(name) && exactly.device_class_name == DRIVER);
        check_selectors(&exactly.selectors);
        match exactly.allocation_mode.as_deref().unwrap_or("ExactCount") {
            "ExactCount" => assert!(exactly.count.is_none_or(|count| count > 0)),
            mode => assert!(mode == "All" && exactly.count.is_none()),
        }
        assert!(exactly.admin_access.is_none(), "only for administrators");
    }
}

#[test]
fn device_classes() {
    let (name, class) = read::<Class>("device-class.yaml", "v1", "DeviceClass");
    check_class(&name, &class.selectors, &class.config);
    // The device plugin serves the resource.
    assert_eq!(class.extended_resource_name, None);
}

#[test]
fn claim_templates() {
    let kind = "ResourceClaimTemplate";
    let (_, template) = read::<Template>("resource-claim-template.yaml", "v1", kind);
    check_requests(&template.spec.devices.requests);
}

#[test]
fn attribute_names() {
    let attributes = attributes();
    assert!((10..=LONGEST_LIST).contains(&attributes.len()), "{attributes:?}");
    // Constraints across drivers need these names.
    for standard in ["pciBusID", "pcieRoot", "numaNode"] {
        let of_name = |(known, _): &&(String, String)| known.rsplit('/').next() == Some(standard);
        let found: Vec<_> = attributes.iter().filter(of_name).map(|(known, _)| known).collect();
        assert_eq!(found, [&format!("resource.kubernetes.io/{standard}")]);
    }
    for (attribute, kind) in attributes {
        let (domain, name) = attribute.split_once('/').unwrap();
        assert!(is_subdomain(domain, 63), "{attribute}");
        // A C identifier.
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name =
            name.len() <= 32 && name.bytes().all(is_inner) && !name.starts_with(|c: char| c.is_ascii_digit());
        assert!(is_name, "{attribute}");
        assert!(["string", "int", "bool", "version"].contains(&kind.as_str()), "{attribute}: {kind}");
    }
}
