//! Decodes the keys of the `ipam` section.

use std::path::PathBuf;

use cni_common::spec::{CniError, NetConf};
use serde::Deserialize;

use crate::wire::{self, Family, Options};

/// What the plugin requests if the configuration does not say `skipDefault`: 1 subnet mask, 3 routers, 6 name servers, 15
/// domain, 26 MTU, 33 static routes, 42 time servers, 119 search list, 121 classless routes. RFC 3442 wants 121 first. The
/// reference requests only 3 and 1.
const DEFAULT_REQUEST: [u8; 9] = [121, 1, 3, 6, 15, 26, 33, 42, 119];

/// Options that the daemon sets: padding, requested address, message type, server, request list, end.
const RESERVED: [u8; 6] = [0, 50, 53, 54, 55, 255];

/// Names of options. The first six are the reference's.
const NAMES: [(&str, u8); 13] = [
    ("dhcp-client-identifier", 61),
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
    ("domain-name-servers", 6),
    ("domain-name", 15),
    ("interface-mtu", 26),
    ("static-routes", 33),
    ("ntp-servers", 42),
    ("domain-search", 119),
    ("classless-static-routes", 121),
];

/// The decoded keys.
#[derive(Debug)]
pub struct Config {
    /// `ipam.daemonSocketPath`.
    pub socket: PathBuf,
    /// `ipam.families`, in the order of results.
    pub families: Vec<Family>,
    /// `provide`, `request` and `broadcast`.
    pub options: Options,
    /// `ipam.rapidCommit`.
    pub rapid_commit: bool,
    /// `ipam.priority`: the metric of every route; 0 for none.
    pub priority: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire<K> {
    ipam: Option<K>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    daemon_socket_path: String,
    provide: Vec<Provide>,
    request: Vec<RequestKey>,
    priority: u32,
    broadcast: bool,
    families: Option<Vec<String>>,
    rapid_commit: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Provide {
    option: String,
    value: String,
    from_arg: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RequestKey {
    option: String,
    skip_default: bool,
}

impl Config {
    /// Reads and checks the configuration. `args` is CNI_ARGS.
    ///
    /// # Errors
    /// Code 6 for a value of the wrong type, 7 for a missing `ipam` section or an invalid option.
    pub fn load(conf: &NetConf, args: &str) -> Result<Self, CniError> {
        let keys = conf.decode::<Wire<Keys>>()?.ipam;
        let keys = keys.ok_or_else(|| CniError::invalid_config("IPAM config missing 'ipam' key"))?;
        let mut provide = Vec::new();
        for key in &keys.provide {
            let code = parse_option(&key.option)?;
            if RESERVED.contains(&code) {
                return Err(CniError::invalid_config(format!("provide: option {code} cannot be set")));
            }
            let arg = value_of(args, &key.from_arg);
            let value = arg.unwrap_or(&key.value);
            if value.len() > 255 {
                let source = arg.map_or(String::new(), |_| format!(" from CNI_ARGS {:?}", key.from_arg));
                let msg = format!("value too long for option {:?}{source}: {value:?}", key.option);
                return Err(CniError::invalid_config(msg));
            }
            // RFC 2132 has no empty options.
            if !value.is_empty() {
                provide.push((code, value.as_bytes().to_vec()));
            }
        }
        let request: Result<Vec<u8>, _> = keys.request.iter().map(|key| parse_option(&key.option)).collect();
        let mut request = request?;
        if !keys.request.iter().any(|key| key.skip_default) {
            request.extend(DEFAULT_REQUEST);
        }
        if request.is_empty() {
            request = vec![1, 3, 15, 6];
        }
        let mut seen = [false; 256];
        request.retain(|code| !std::mem::replace(&mut seen[usize::from(*code)], true));
        Ok(Config {
            socket: socket_or_default(keys.daemon_socket_path),
            families: keys.families.as_deref().map_or(Ok(vec![Family::Ipv4]), families)?,
            options: Options { provide, request, broadcast: keys.broadcast },
            rapid_commit: keys.rapid_commit,
            priority: keys.priority,
        })
    }

    /// The path of the daemon's socket, for verbs that need nothing else. A broken configuration does not stop them.
    pub fn socket(conf: &NetConf) -> PathBuf {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct SocketKey {
            daemon_socket_path: String,
        }
        let keys = conf.decode::<Wire<SocketKey>>().ok().and_then(|keys| keys.ipam);
        socket_or_default(keys.unwrap_or_default().daemon_socket_path)
    }
}

fn socket_or_default(path: String) -> PathBuf {
    if path.is_empty() { wire::SOCKET.into() } else { path.into() }
}

/// The names are those of `ipMasqFamilies`.
fn families(names: &[String]) -> Result<Vec<Family>, CniError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names[..] {
        ["ipv4"] => Ok(vec![Family::Ipv4]),
        ["ipv6"] => Ok(vec![Family::Ipv6]),
        ["ipv4", "ipv6"] | ["ipv6", "ipv4"] => Ok(Family::ALL.into()),
        _ => Err(CniError::invalid_config(format!("invalid families {names:?}"))
            .with_details("it has \"ipv4\", \"ipv6\" or both")),
    }
}

/// The value of a key in CNI_ARGS. Unlike other plugins, the reference takes any text here.
fn value_of<'a>(args: &'a str, key: &str) -> Option<&'a str> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == key && !key.is_empty()).map(|(_, value)| value).next_back()
}

/// The code of an option by its name or its number, with the reference's errors.
fn parse_option(text: &str) -> Result<u8, CniError> {
    if let Some((_, code)) = NAMES.iter().find(|(name, _)| *name == text) {
        return Ok(*code);
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or_else(|| {
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        CniError::invalid_config(format!(
            "Can not parse option {text:?}: Can not parse option: strconv.ParseUint: parsing {text:?}: {why}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(ipam: &str, args: &str) -> Result<Config, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{ipam}}}"#);
        Config::load(&NetConf::parse(text.into_bytes())?, args)
    }

    #[test]
    fn defaults() {
        let config = load(r#"{"type":"dhcp"}"#, "").unwrap();
        assert_eq!(config.socket, PathBuf::from("/run/cni/dhcp.sock"));
        assert_eq!(config.options.request, DEFAULT_REQUEST);
        assert!(config.options.provide.is_empty() && !config.options.broadcast && config.priority == 0);
        assert_eq!((config.families, config.rapid_commit), (vec![Family::Ipv4], false));
    }

    #[test]
    fn options_from_the_configuration_and_from_arguments() {
        let ipam = r#"{"daemonSocketPath":"/x","priority":7,"broadcast":true,
            "provide":[{"option":"host-name","value":"a","fromArg":"NAME"},{"option":"60","value":"v"},
                {"option":"77","value":""},{"option":"12","value":"","fromArg":"EMPTY"}],
            "request":[{"option":"routers"},{"option":"60"}]}"#;
        let config = load(ipam, "K;NAME=first;NAME=b=c;EMPTY=").unwrap();
        let provide: Vec<(u8, &[u8])> =
            config.options.provide.iter().map(|(code, value)| (*code, value.as_slice())).collect();
        assert_eq!(provide, [(12, b"b=c".as_slice()), (60, b"v")]);
        assert_eq!(config.options.request, [3, 60, 121, 1, 6, 15, 26, 33, 42, 119]);
        assert_eq!((config.socket, config.priority), ("/x".into(), 7));
        assert_eq!(load(ipam, "").unwrap().options.provide[0], (12, b"a".to_vec()));
        let skip = load(r#"{"request":[{"option":"3","skipDefault":true}]}"#, "").unwrap();
        assert_eq!(skip.options.request, [3]);
    }

    #[test]
    fn families_of_addresses() {
        for (names, expected) in [
            ("null", vec![Family::Ipv4]),
            (r#"["ipv4"]"#, vec![Family::Ipv4]),
            (r#"["ipv6"]"#, vec![Family::Ipv6]),
            (r#"["ipv6","ipv4"]"#, vec![Family::Ipv4, Family::Ipv6]),
        ] {
            let config = load(&format!(r#"{{"families":{names},"rapidCommit":true}}"#), "").unwrap();
            assert_eq!((config.families, config.rapid_commit), (expected, true));
        }
        for (names, text) in [
            ("[]", "invalid families []"),
            (r#"["IPv6"]"#, r#"invalid families ["IPv6"]"#),
            (r#"["ipv6","ipv6"]"#, r#"invalid families ["ipv6", "ipv6"]"#),
        ] {
            let error = load(&format!(r#"{{"families":{names}}}"#), "").unwrap_err();
            assert_eq!((error.code.number(), error.msg.as_str()), (7, text));
        }
        assert_eq!(load(r#"{"families":"ipv6"}"#, "").unwrap_err().code.number(), 6);
    }

    #[test]
    fn errors_have_the_references_texts() {
        let parse = "Can not parse option: strconv.ParseUint: parsing";
        let long = "x".repeat(256);
        for (ipam, args, msg) in [
            ("null", "", "IPAM config missing 'ipam' key".to_owned()),
            (
                r#"{"request":[{"option":"bogus"}]}"#,
                "",
                format!(r#"Can not parse option "bogus": {parse} "bogus": invalid syntax"#),
            ),
            (
                r#"{"provide":[{"option":"256"}]}"#,
                "",
                format!(r#"Can not parse option "256": {parse} "256": value out of range"#),
            ),
            (
                r#"{"provide":[{"option":"+1"}]}"#,
                "",
                format!(r#"Can not parse option "+1": {parse} "+1": invalid syntax"#),
            ),
            (
                r#"{"provide":[{"option":"12","fromArg":"A"}]}"#,
                &format!("A={long}"),
                format!(r#"value too long for option "12" from CNI_ARGS "A": "{long}""#),
            ),
            (
                &format!(r#"{{"provide":[{{"option":"12","value":"{long}"}}]}}"#),
                "",
                format!(r#"value too long for option "12": "{long}""#),
            ),
            (
                r#"{"provide":[{"option":"53","value":"x"}]}"#,
                "",
                "provide: option 53 cannot be set".to_owned(),
            ),
        ] {
            let error = load(ipam, args).unwrap_err();
            assert_eq!((error.code.number(), error.msg), (7, msg));
        }
        assert_eq!(load(r#"{"provide":{}}"#, "").unwrap_err().code.number(), 6);
    }

    #[test]
    fn a_broken_configuration_has_a_socket() {
        let text = br#"{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"provide":3,"daemonSocketPath":"/y"}}"#;
        assert_eq!(Config::socket(&NetConf::parse(text.to_vec()).unwrap()), PathBuf::from("/y"));
        let text = br#"{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":3}"#;
        assert_eq!(Config::socket(&NetConf::parse(text.to_vec()).unwrap()), PathBuf::from(wire::SOCKET));
    }
}
