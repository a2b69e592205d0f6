//! The keys for a virtual function (SR-IOV), with the names that sriov-cni gives them. Nothing here touches the kernel.

use std::fmt::Display;

use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::netlink::vf::{DOT1AD, DOT1Q, LINK_STATES, Setting};
use serde::Deserialize;

const SWITCHES: [(&str, bool); 2] = [("on", true), ("off", false)];
const PROTOS: [(&str, u16); 2] = [("802.1q", DOT1Q), ("802.1ad", DOT1AD)];

/// The settings that the configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfConf {
    vlan: Option<Setting>,
    spoof_check: Option<bool>,
    trust: Option<bool>,
    link_state: Option<u32>,
    min_rate: Option<u32>,
    max_rate: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Keys {
    vlan: Option<i64>,
    #[serde(rename = "vlanQoS")]
    vlan_qos: Option<i64>,
    #[serde(rename = "vlanProto")]
    vlan_proto: String,
    spoofchk: String,
    trust: String,
    link_state: String,
    min_tx_rate: Option<i64>,
    max_tx_rate: Option<i64>,
}

impl VfConf {
    /// Reads the keys.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let conf = VfConf {
            vlan: vlan(&keys)?,
            spoof_check: choice("spoofchk", &SWITCHES, &keys.spoofchk)?,
            trust: choice("trust", &SWITCHES, &keys.trust)?,
            link_state: choice("link_state", &LINK_STATES, &keys.link_state)?,
            min_rate: number("min_tx_rate", u32::MAX, keys.min_tx_rate)?,
            max_rate: number("max_tx_rate", u32::MAX, keys.max_tx_rate)?,
        };
        match (conf.min_rate, conf.max_rate) {
            (Some(min), Some(max)) if max != 0 && min > max => {
                Err(invalid("min_tx_rate", min, &format!("more than max_tx_rate {max}")))
            }
            _ => Ok(conf),
        }
    }

    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == VfConf::default()
    }

    /// What a virtual function with the settings `present` must have, each with its key. A rate that is not configured stays.
    pub fn wanted(&self, present: &[Setting]) -> Vec<(&'static str, Setting)> {
        let rate = present.iter().find_map(|setting| match setting {
            Setting::Rate { min, max } => Some((*min, *max)),
            _ => None,
        });
        let (min, max) = rate.unwrap_or_default();
        let rate_key = if self.max_rate.is_some() { "max_tx_rate" } else { "min_tx_rate" };
        let has_rate = self.min_rate.is_some() || self.max_rate.is_some();
        let rate = Setting::Rate { min: self.min_rate.unwrap_or(min), max: self.max_rate.unwrap_or(max) };
        let all = [
            ("vlan", self.vlan),
            (rate_key, has_rate.then_some(rate)),
            ("spoofchk", self.spoof_check.map(Setting::SpoofCheck)),
            ("trust", self.trust.map(Setting::Trust)),
            ("link_state", self.link_state.map(Setting::LinkState)),
        ];
        all.into_iter().filter_map(|(key, setting)| Some((key, setting?))).collect()
    }
}

fn vlan(keys: &Keys) -> Result<Option<Setting>, CniError> {
    let id = number("vlan", 4094, keys.vlan)?;
    let qos = number("vlanQoS", 7, keys.vlan_qos)?.unwrap_or_default();
    let proto = choice("vlanProto", &PROTOS, &keys.vlan_proto.to_ascii_lowercase())?.unwrap_or(DOT1Q);
    if id.unwrap_or_default() == 0 {
        if qos != 0 {
            return Err(invalid("vlanQoS", qos, "it needs a vlan"));
        }
        if proto != DOT1Q {
            return Err(invalid("vlanProto", &keys.vlan_proto, "it needs a vlan"));
        }
    }
    Ok(id.map(|id| Setting::Vlan { id, qos, proto }))
}

fn number(key: &str, most: u32, value: Option<i64>) -> Result<Option<u32>, CniError> {
    let Some(value) = value else { return Ok(None) };
    let number = u32::try_from(value).ok().filter(|number| *number <= most);
    number.map(Some).ok_or_else(|| invalid(key, value, &format!("not between 0 and {most}")))
}

/// The value with this name; `None` for an empty text.
fn choice<T: Copy>(key: &str, names: &[(&str, T)], name: &str) -> Result<Option<T>, CniError> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| Some(*value)).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
        invalid(key, name, &format!("{} are known", known.join(", ")))
    })
}

fn invalid(key: &str, value: impl Display, why: &str) -> CniError {
    CniError::invalid_config(format!("invalid {key} {value}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<VfConf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"host-device"{keys}}}"#);
        VfConf::read(&NetConf::parse(text.into_bytes())?)
    }

    fn wanted(keys: &str) -> Vec<(&'static str, Setting)> {
        read(keys).unwrap().wanted(&[Setting::Trust(false), Setting::Rate { min: 5, max: 50 }])
    }

    #[test]
    fn keys_become_settings() {
        assert!(read("").unwrap().is_empty() && read(r#","vlan":null,"trust":"""#).unwrap().is_empty());
        let all = r#","vlan":100,"vlanQoS":3,"vlanProto":"802.1AD","spoofchk":"off","trust":"on","link_state":"disable",
            "min_tx_rate":10,"max_tx_rate":200"#;
        assert_eq!(
            wanted(all),
            [
                ("vlan", Setting::Vlan { id: 100, qos: 3, proto: DOT1AD }),
                ("max_tx_rate", Setting::Rate { min: 10, max: 200 }),
                ("spoofchk", Setting::SpoofCheck(false)),
                ("trust", Setting::Trust(true)),
                ("link_state", Setting::LinkState(2)),
            ]
        );
        assert_eq!(
            wanted(r#","vlan":0,"vlanQoS":0"#),
            [("vlan", Setting::Vlan { id: 0, qos: 0, proto: DOT1Q })]
        );
        // The other rate stays.
        assert_eq!(wanted(r#","min_tx_rate":0"#), [("min_tx_rate", Setting::Rate { min: 0, max: 50 })]);
        assert_eq!(wanted(r#","MAX_TX_RATE":0"#), [("max_tx_rate", Setting::Rate { min: 5, max: 0 })]);
    }

    #[test]
    fn invalid_values_name_the_key() {
        for (keys, msg) in [
            (r#","vlan":4095"#, "invalid vlan 4095: not between 0 and 4094"),
            (r#","vlan":-1"#, "invalid vlan -1: not between 0 and 4094"),
            (r#","vlan":5,"vlanQoS":8"#, "invalid vlanQoS 8: not between 0 and 7"),
            (r#","vlanQoS":1"#, "invalid vlanQoS 1: it needs a vlan"),
            (r#","vlan":0,"vlanProto":"802.1ad""#, "invalid vlanProto 802.1ad: it needs a vlan"),
            (r#","vlan":5,"vlanProto":"x""#, "invalid vlanProto x: 802.1q, 802.1ad are known"),
            (r#","spoofchk":"yes""#, "invalid spoofchk yes: on, off are known"),
            (r#","trust":"ON""#, "invalid trust ON: on, off are known"),
            (r#","link_state":"up""#, "invalid link_state up: auto, enable, disable are known"),
            (r#","min_tx_rate":4294967296"#, "invalid min_tx_rate 4294967296: not between 0 and 4294967295"),
            (r#","min_tx_rate":2,"max_tx_rate":1"#, "invalid min_tx_rate 2: more than max_tx_rate 1"),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code.number(), error.msg.as_str()), (7, msg), "{keys}");
        }
        for keys in [r#","vlan":"5""#, r#","trust":true"#] {
            assert_eq!(read(keys).unwrap_err().code.number(), 6, "{keys}");
        }
        assert!(read(r#","min_tx_rate":2,"max_tx_rate":0"#).is_ok());
    }
}
