//! Tests of Go's `encoding/json` rules: one row for each case that `Json::decode` must handle for derived
//! structs.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use cni_common::spec::json::Json;
use serde::Deserialize;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    cni_version: String,
    name: String,
    mtu: u32,
    offset: i64,
    wide: u64,
    port: u16,
    ratio: f64,
    is_gateway: bool,
    maybe: Option<String>,
    tags: Vec<String>,
    maybe_tags: Vec<Option<String>>,
    labels: BTreeMap<String, String>,
    limits: HashMap<String, u32>,
    flags: BTreeMap<String, Option<bool>>,
    inner: Inner,
    maybe_inner: Option<Inner>,
    list: Vec<Vec<Inner>>,
    by_name: BTreeMap<String, Inner>,
    mode: Mode,
    id: Id,
    ip: Option<IpAddr>,
    pair: (u8, String),
    raw: Option<Json>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Inner {
    a: u32,
    b: u32,
    deep: Option<Box<Inner>>,
    key: String,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Bridge,
    Private,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct Id(String);

#[derive(Debug, PartialEq, Deserialize)]
struct Required {
    must: u32,
}

fn decode<'de, T: Deserialize<'de>>(json: &'de Json) -> Result<T, String> {
    json.decode().map_err(|error| error.to_string())
}

fn conf(text: impl AsRef<[u8]>) -> Result<Conf, String> {
    decode(&Json::parse(text.as_ref()).map_err(|error| error.to_string())?)
}

/// Asserts for each row that the text decodes, that the named fields have these values and all others their
/// defaults.
macro_rules! accepted {
    ($($text:expr => { $($field:ident: $value:expr),* })*) => {$(
        let want = Conf { $($field: $value,)* ..Conf::default() };
        assert_eq!(conf($text), Ok(want), "{:?}", $text);
    )*};
}

/// Asserts for each row that decoding the text fails with this error.
macro_rules! refused {
    ($($text:expr => $error:expr)*) => {$(
        assert_eq!(conf($text), Err($error.to_owned()), "{:?}", $text);
    )*};
}

fn inner(a: u32, b: u32) -> Inner {
    Inner { a, b, ..Inner::default() }
}

fn strings<C: FromIterator<String>>(all: &[&str]) -> C {
    all.iter().copied().map(str::to_owned).collect()
}

fn map<V, C: FromIterator<(String, V)>, const N: usize>(entries: [(&str, V); N]) -> C {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[test]
fn keys_fold_onto_fields() {
    accepted! {
        r#"{"name":"x"}"# => { name: "x".into() }
        r#"{"NAME":"x"}"# => { name: "x".into() }
        r#"{"CNIVERSION":"1.0.0","IsGateWay":true}"# => { cni_version: "1.0.0".into(), is_gateway: true }
        r#"{"tagſ":["x"],"i\u017fGateway":true}"# => { tags: strings(&["x"]), is_gateway: true }
        "{\"inner\":{\"\u{212A}EY\":\"x\"}}" => { inner: Inner { key: "x".into(), ..inner(0, 0) } }
        r#"{"Inner":{"A":1,"DEEP":{"B":2}}}"# =>
            { inner: Inner { deep: Some(Box::new(inner(0, 2))), ..inner(1, 0) } }
        r#"{"List":[[{"A":1}],[{"B":2}]]}"# => { list: vec![vec![inner(1, 0)], vec![inner(0, 2)]] }
        r#"{"cni_version":"1","mtü":1,"nam":"x","namee":"y"}"# => {}
    }
}

#[test]
fn an_exact_key_has_precedence_and_the_last_equal_key_wins() {
    accepted! {
        r#"{"name":"x","Name":"y"}"# => { name: "x".into() }
        r#"{"Name":"y","name":"x"}"# => { name: "x".into() }
        r#"{"name":"x","Name":{"IP":1}}"# => { name: "x".into() }
        r#"{"Name":[1],"name":"x"}"# => { name: "x".into() }
        r#"{"name":"x","name":"y"}"# => { name: "y".into() }
        r#"{"Name":"x","NAME":"y"}"# => { name: "y".into() }
        r#"{"NAME":"x","Name":"y"}"# => { name: "y".into() }
        r#"{"name":"x","Name":"y","name":"z","NAME":"w"}"# => { name: "z".into() }
        r#"{"inner":{"a":1,"A":2}}"# => { inner: inner(1, 0) }
        r#"{"inner":{"a":1},"Inner":{"b":2}}"# => { inner: inner(1, 0) }
        r#"{"tags":["x","y"],"tags":["z"]}"# => { tags: strings(&["z"]) }
        r#"{"mtu":1,"mtu":2}"# => { mtu: 2 }
    }
    // Only the last value is decoded, so its type matters.
    refused! { r#"{"name":"x","name":1}"# => "name: expected a string, found number 1" }
}

#[test]
fn map_keys_are_not_folded() {
    accepted! {
        r#"{"Labels":{"Name":"x","name":"y","ſ":"z"}}"# =>
            { labels: map([("Name", "x".into()), ("name", "y".into()), ("ſ", "z".into())]) }
        r#"{"labels":{"a":"x","a":"y"}}"# => { labels: map([("a", "y".into())]) }
        r#"{"limits":{"a":1,"A":2,"a":3}}"# => { limits: map([("a", 3), ("A", 2)]) }
        r#"{"byName":{"X":{"A":1},"x":{"B":2},"X":{"b":3}}}"# =>
            { by_name: map([("X", inner(0, 3)), ("x", inner(0, 2))]) }
    }
}

#[test]
fn null_keeps_the_default_or_the_earlier_value() {
    accepted! {
        r#"{"name":null,"mtu":null,"ratio":null,"isGateway":null,"maybe":null,"tags":null,"labels":null}"# => {}
        r#"{"inner":null,"maybeInner":null,"list":null,"mode":null,"id":null,"ip":null,"raw":null}"# => {}
        r#"{"inner":{"a":null,"deep":null,"b":1}}"# => { inner: inner(0, 1) }
        r#"{"name":"x","name":null}"# => { name: "x".into() }
        r#"{"name":null,"name":"x"}"# => { name: "x".into() }
        r#"{"name":null,"Name":"x"}"# => { name: "x".into() }
        r#"{"maybe":"x","maybe":null}"# => { maybe: Some("x".into()) }
        r#"{"inner":{"a":1},"inner":null,"inner":{"b":2}}"# => { inner: inner(1, 2) }
        r#"{"inner":{"a":1},"inner":{"a":null,"b":2}}"# => { inner: inner(1, 2) }
        "null" => {}
    }
    let null = Json::parse(b"null").expect("null");
    assert_eq!(decode(&null), Ok(None::<Conf>));
    assert_eq!(decode::<Required>(&null), Err("missing field `must`".to_owned()));
}

#[test]
fn null_in_a_map_is_the_zero_value() {
    accepted! {
        r#"{"labels":{"a":null},"limits":{"a":null},"flags":{"a":null}}"# =>
            { labels: map([("a", String::new())]), limits: map([("a", 0)]), flags: map([("a", None)]) }
        r#"{"byName":{"a":null}}"# => { by_name: map([("a", inner(0, 0))]) }
        r#"{"limits":{"a":1,"a":null}}"# => { limits: map([("a", 0)]) }
    }
    type Zeros = (BTreeMap<String, bool>, BTreeMap<String, f64>, BTreeMap<String, Vec<u8>>);
    let json = Json::parse(br#"[{"a":null},{"a":null},{"a":null}]"#).expect("maps");
    let want: Zeros = (map([("a", false)]), map([("a", 0.0)]), map([("a", vec![])]));
    assert_eq!(decode(&json), Ok(want));
}

#[test]
fn null_in_a_list_is_none_or_an_error() {
    accepted! {
        r#"{"maybeTags":["x",null]}"# => { maybe_tags: vec![Some("x".into()), None] }
    }
    refused! {
        r#"{"tags":["x",null]}"# => "tags[1]: expected a string, found null"
        r#"{"list":[null]}"# => "list[0]: expected an array, found null"
        r#"{"list":[[],[{},null]]}"# => "list[1][1]: expected an object, found null"
        r#"{"pair":[null,"x"]}"# => "pair[0]: expected u8, found null"
    }
}

#[test]
fn duplicate_objects_merge() {
    accepted! {
        r#"{"inner":{"a":1},"inner":{"b":2}}"# => { inner: inner(1, 2) }
        r#"{"inner":{"a":1,"b":1},"inner":{"b":2}}"# => { inner: inner(1, 2) }
        r#"{"INNER":{"a":1},"Inner":{"b":2}}"# => { inner: inner(1, 2) }
        r#"{"inner":{"a":1},"inner":{"A":2}}"# => { inner: inner(2, 0) }
        r#"{"maybeInner":{"a":1},"maybeInner":{"b":2}}"# => { maybe_inner: Some(inner(1, 2)) }
        r#"{"inner":{"deep":{"a":1}},"inner":{"a":3,"deep":{"b":2}}}"# =>
            { inner: Inner { deep: Some(Box::new(inner(1, 2))), ..inner(3, 0) } }
        r#"{"labels":{"a":"x","b":"x"},"labels":{"b":"y"}}"# =>
            { labels: map([("a", "x".into()), ("b", "y".into())]) }
        r#"{"list":[[{"a":1}]],"list":[[{"b":2}]]}"# => { list: vec![vec![inner(0, 2)]] }
    }
    refused! {
        r#"{"inner":"x","inner":{"b":2}}"# => "inner: expected an object, found string \"x\""
        r#"{"inner":{"a":"x"},"inner":{"b":2}}"# => "inner.a: expected u32, found string \"x\""
    }
}

#[test]
fn unknown_keys_are_ignored() {
    accepted! {
        r#"{"x":1,"y":[null,{"name":"z"}],"z":{"name":{"name":[]}},"":"","mtu":5,"w":1e300}"# => { mtu: 5 }
        r#"{"inner":{"x":{"a":7},"a":1,"y":"a"}}"# => { inner: inner(1, 0) }
        r#"{"list":[[{"x":[[]],"a":1}]]}"# => { list: vec![vec![inner(1, 0)]] }
    }
}

#[test]
fn integers_must_be_written_as_integers_and_fit() {
    accepted! {
        r#"{"mtu":4294967295,"port":65535}"# => { mtu: u32::MAX, port: u16::MAX }
        r#"{"wide":18446744073709551615}"# => { wide: u64::MAX }
        r#"{"wide":9007199254740993}"# => { wide: 9_007_199_254_740_993 }
        r#"{"offset":-9223372036854775808}"# => { offset: i64::MIN }
        r#"{"offset":9223372036854775807}"# => { offset: i64::MAX }
        r#"{"ratio":2}"# => { ratio: 2.0 }
        r#"{"ratio":-2}"# => { ratio: -2.0 }
        r#"{"ratio":2.5}"# => { ratio: 2.5 }
        r#"{"ratio":1e6}"# => { ratio: 1e6 }
    }
    refused! {
        r#"{"mtu":8000.0}"# => "mtu: expected u32, found number 8000.0"
        r#"{"mtu":1e6}"# => "mtu: expected u32, found number 1000000.0"
        r#"{"mtu":"8000"}"# => "mtu: expected u32, found string \"8000\""
        r#"{"mtu":-1}"# => "mtu: expected u32, found number -1"
        r#"{"mtu":4294967296}"# => "mtu: expected u32, found number 4294967296"
        r#"{"port":65536}"# => "port: expected u16, found number 65536"
        r#"{"wide":-1}"# => "wide: expected u64, found number -1"
        r#"{"wide":18446744073709551616}"# => "wide: expected u64, found number 1.8446744073709552e+19"
        r#"{"offset":9223372036854775808}"# => "offset: expected i64, found number 9223372036854775808"
        r#"{"mtu":true}"# => "mtu: expected u32, found boolean true"
        r#"{"mtu":{}}"# => "mtu: expected u32, found object"
        r#"{"ratio":"1"}"# => "ratio: expected f64, found string \"1\""
    }
}

#[test]
fn other_types_are_not_converted() {
    accepted! {
        r#"{"isGateway":true,"mode":"private","id":"x","ip":"::1"}"# =>
            { is_gateway: true, mode: Mode::Private, id: Id("x".into()), ip: Some(IpAddr::from([0u16,0,0,0,0,0,0,1])) }
        r#"{"pair":[1,"x"]}"# => { pair: (1, "x".into()) }
    }
    refused! {
        r#"{"isGateway":"true"}"# => "isGateway: expected a boolean, found string \"true\""
        r#"{"isGateway":1}"# => "isGateway: expected a boolean, found number 1"
        r#"{"name":1}"# => "name: expected a string, found number 1"
        r#"{"name":true}"# => "name: expected a string, found boolean true"
        r#"{"id":{}}"# => "id: expected a string, found object"
        r#"{"tags":"x"}"# => "tags: expected an array, found string \"x\""
        r#"{"tags":{}}"# => "tags: expected an array, found object"
        r#"{"labels":[]}"# => "labels: expected an object, found array"
        r#"{"inner":[1,2]}"# => "inner: expected an object, found array"
        r#"{"mode":"Private"}"# => "mode: unknown variant `Private`, expected `bridge` or `private`"
        r#"{"mode":{"private":null}}"# => "mode: expected a string, found object"
        r#"{"ip":"x"}"# => "ip: invalid IP address syntax"
        "[]" => "expected an object, found array"
    }
}

#[test]
fn an_error_names_the_path_as_written() {
    refused! {
        r#"{"INNER":{"Deep":{"A":"x"}}}"# => "INNER.Deep.A: expected u32, found string \"x\""
        r#"{"list":[[],[{},{"b":[]}]]}"# => "list[1][1].b: expected u32, found array"
        r#"{"labels":{"net.ipv4":1}}"# => "labels[\"net.ipv4\"]: expected a string, found number 1"
        r#"{"byName":{"x-y":{"a":-1}}}"# => "byName.x-y.a: expected u32, found number -1"
    }
    let json = Json::parse(br#"[{}]"#).expect("list");
    assert_eq!(decode::<Vec<Required>>(&json), Err("[0]: missing field `must`".to_owned()));
}

#[test]
fn invalid_text_becomes_the_replacement_character() {
    accepted! {
        b"{\"name\":\"a\xffb\"}" => { name: "a\u{fffd}b".into() }
        b"{\"name\":\"\xe2\x82\"}" => { name: "\u{fffd}\u{fffd}".into() }
        b"{\"labels\":{\"\xff\":\"x\"}}" => { labels: map([("\u{fffd}", "x".into())]) }
        r#"{"name":"\ud800"}"# => { name: "\u{fffd}".into() }
        r#"{"name":"\uDC00\uD83D\uDE00"}"# => { name: "\u{fffd}\u{1f600}".into() }
        r#"{"name":"\\ud800"}"# => { name: "\\ud800".into() }
    }
}

#[test]
fn has_key_ignores_case_and_value() {
    let json = Json::parse(br#"{"ingressRate": null, "A": {"inner": 1}}"#).unwrap();
    assert!(json.has_key("ingressRate") && json.has_key("INGRESSRATE") && json.has_key("a"));
    assert!(!json.has_key("inner") && !json.has_key("ingress"));
    assert!(!Json::parse(b"[1]").unwrap().has_key("1"));
}

/// serde_json refuses deeper documents before the stack is full.
#[test]
fn nesting_is_limited() {
    let nested = |levels: usize| format!("{{\"raw\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
    let decode = |text: String| conf(text).is_ok();
    assert!(decode(nested(120)) && !decode(nested(128)) && !decode(nested(100_000)));
}
