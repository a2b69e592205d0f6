//! Tests of `Json` as a document: raw fields, lookup and serialising; and of configurations that real
//! runtimes write.

use cni_common::spec::json::Json;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PortMapping {
    host_port: u16,
    container_port: u16,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NetConf {
    cni_version: String,
    name: String,
    ipam: Ipam,
    dns: Dns,
    runtime_config: RuntimeConfig,
    prev_result: Option<Json>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    subnet: String,
    data_dir: String,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Dns {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<PortMapping>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct TwoCases {
    address: String,
    #[serde(rename = "Address")]
    upper: u32,
}

fn net_conf(text: &str) -> NetConf {
    match Json::parse(text.as_bytes()).and_then(|json| json.decode()) {
        Ok(conf) => conf,
        Err(error) => panic!("{text}: {error}"),
    }
}

#[test]
fn go_cni_port_mapping() {
    let text = br#"{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}"#;
    let want =
        PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: String::new() };
    assert_eq!(Json::parse(text).expect("mapping").decode(), Ok(want));
}

#[test]
fn go_cni_runtime_config() {
    let text = r#"{"cniVersion":"1.0.0","RuntimeConfig":{"portMappings":[
        {"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"10.0.0.1"}],"dns":{"Servers":null}}}"#;
    let conf = net_conf(text);
    assert_eq!(conf.runtime_config.port_mappings[0].host_ip, "10.0.0.1");
    assert_eq!(conf.dns, Dns::default());
}

#[test]
fn nulls_and_capitals() {
    assert_eq!(net_conf(r#"{"dns":{"Servers":null,"Searches":null,"Options":null}}"#), NetConf::default());
    let conf =
        net_conf(r#"{"CNIVERSION":"1.0.0","Name":"x","IPAM":{"SubNet":"10.1.0.0/16","DATADIR":"/x"}}"#);
    let ipam = Ipam { subnet: "10.1.0.0/16".into(), data_dir: "/x".into() };
    assert_eq!(conf, NetConf { cni_version: "1.0.0".into(), name: "x".into(), ipam, ..NetConf::default() });
}

#[test]
fn a_raw_field_is_lossless() {
    let raw =
        r#"{"Ips":[{"address":"10.0.0.2/16"},null],"ips":null,"x":1,"x":2,"n":18446744073709551615,"f":1.5}"#;
    let conf = net_conf(&format!(r#"{{"PrevResult":{raw},"name":"x"}}"#));
    let json = conf.prev_result.expect("raw");
    assert_eq!(serde_json::to_string(&json).expect("text"), raw);
    assert_eq!(json.clone().decode(), Ok(json));
    // Duplicates of a `Json` field are not merged: the last one wins, as with Go's json.RawMessage.
    let conf = net_conf(r#"{"prevResult":{"a":1},"prevResult":{"b":2}}"#);
    assert_eq!(serde_json::to_string(&conf.prev_result).expect("text"), r#"{"b":2}"#);
    assert_eq!(net_conf(r#"{"prevResult":null}"#).prev_result, None);
}

#[test]
fn get_follows_the_rules_for_a_field() {
    let text = br#"{"Name":1,"name":2,"NAME":3,"Type":4,"TYPE":5,"x":null,"y":6,"y":null,"z":null,"Z":7}"#;
    let json = Json::parse(text).expect("object");
    let get = |key| json.get(key).map(|value| value.decode::<u8>().expect(key));
    assert_eq!(get("name"), Some(2));
    assert_eq!(get("NAME"), Some(3));
    assert_eq!(get("type"), Some(5));
    assert_eq!(get("x"), None);
    assert_eq!(get("y"), Some(6));
    assert_eq!(get("z"), Some(7));
    assert_eq!(get("w"), None);
    assert_eq!(Json::parse(br#"["name"]"#).expect("array").get("name"), None);
}

#[test]
fn kind_names() {
    let rows = [
        ("null", "null"),
        ("true", "boolean"),
        ("1", "number"),
        ("-1", "number"),
        ("1.5", "number"),
        (r#""x""#, "string"),
        ("[]", "array"),
        ("{}", "object"),
    ];
    for (text, kind) in rows {
        let json = Json::parse(text.as_bytes()).expect(text);
        assert_eq!(json.kind(), kind);
        assert_eq!(json.is_object(), kind == "object", "{text}");
        assert_eq!(json.is_null(), kind == "null", "{text}");
    }
}

#[test]
fn strings_can_be_borrowed() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Borrowed<'a> {
        name: &'a str,
    }
    let json = Json::parse(br#"{"Name":"x"}"#).expect("object");
    assert_eq!(json.decode(), Ok(Borrowed { name: "x" }));
}

#[test]
fn a_key_that_is_exactly_another_field_is_not_folded() {
    let rows = [
        (r#"{"address":"x","Address":1}"#, "x", 1),
        (r#"{"Address":1}"#, "", 1),
        (r#"{"Address":1,"ADDRESS":"x"}"#, "x", 1),
    ];
    for (text, address, upper) in rows {
        let json = Json::parse(text.as_bytes()).expect(text);
        assert_eq!(json.decode(), Ok(TwoCases { address: address.into(), upper }), "{text}");
    }
}

#[test]
fn malformed_documents_are_errors() {
    let rows: [&[u8]; 14] = [
        b"",
        b" ",
        b"{",
        b"{}x",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"\xff{}",
        b"{\"a\":1,}",
        b"{'a':1}",
        b"{\"a\":01}",
        b"{\"a\":\"\n\"}",
        b"{\"a\":NaN}",
        b"[1",
        b"// x\n{}",
    ];
    for text in rows {
        let error = Json::parse(text).expect_err("malformed").to_string();
        assert!(error.starts_with("malformed JSON: ") && error.contains(" at line "), "{error}");
    }
    assert!(Json::parse(b" \t\r\n{ } \n").expect("white space").is_object());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_serde_json_on_plain_documents(value in any_value()) {
        let text = serde_json::to_string(&value).expect("text");
        let want: Value = serde_json::from_str(&text).expect("value");
        let json = Json::parse(text.as_bytes()).expect("document");
        prop_assert_eq!(serde_json::to_string(&json).expect("text"), want.to_string());
        prop_assert_eq!(json.decode(), Ok(want));
    }

    #[test]
    fn any_spelling_of_a_key_is_found(upper in prop::collection::vec(any::<bool>(), 8), port: u16) {
        let respell = |(c, upper): (char, &bool)| if *upper { c.to_ascii_uppercase() } else { c };
        let key: String = "hostPort".chars().zip(&upper).map(respell).collect();
        let json = Json::parse(format!(r#"{{"{key}":{port}}}"#).as_bytes()).expect("document");
        prop_assert_eq!(json.decode(), Ok(PortMapping { host_port: port, ..PortMapping::default() }));
        prop_assert!(json.get("hostPort").is_some());
    }

    #[test]
    fn a_string_may_contain_any_bytes(bytes in prop::collection::vec(0x20u8.., 0..20)) {
        prop_assume!(!bytes.contains(&b'"') && !bytes.contains(&b'\\'));
        let json = Json::parse(&[b"\"", bytes.as_slice(), b"\""].concat()).expect("string");
        let text: String = json.decode().expect("text");
        prop_assert_eq!(text.contains('\u{fffd}'), std::str::from_utf8(&bytes).is_err());
    }
}
