//! The VLANs of the container's port: `vlan`, `vlanTrunk` and `preserveDefaultVlan`. Nothing here touches the
//! kernel.

use cni_common::spec::{CniError, Code, NetConf};
use ferrule_kernel::netlink::Link;
use ferrule_kernel::netlink::bridge::{self, PVID, UNTAGGED, Vlans};
use ferrule_kit::check::ensure;
use ferrule_kit::steps::Step;
use nix::errno::Errno;
use serde::Deserialize;

/// The highest VLAN number.
const LAST: u16 = 4094;
/// The native VLAN of a port that has only `vlanTrunk`.
const DEFAULT_NATIVE: u16 = 1;

/// An item of `vlanTrunk`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Item {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    vlan: i64,
    /// An item may be `null`, which is an error of ours and not of the decoder.
    vlan_trunk: Option<Vec<Option<Item>>>,
    preserve_default_vlan: bool,
}

/// The checked keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VlanConf {
    /// `vlan`; 0 for none.
    pub vlan: u16,
    /// Whether a new bridge filters: one of the keys is there. An empty `vlanTrunk` is enough.
    pub wants_filtering: bool,
    /// The VLANs of the port, in ascending order. Exactly one is native: untagged frames belong to it.
    wanted: Vec<Vlans>,
    /// Leave the port in the bridge's default VLAN.
    keep_default: bool,
}

/// A VLAN number of `vlanTrunk`.
fn number(value: i64, name: &str) -> Result<u16, CniError> {
    let number = u16::try_from(value).ok().filter(|number| (1..=LAST).contains(number));
    number.ok_or_else(|| CniError::invalid_config(format!("incorrect trunk {name} parameter")))
}

impl Item {
    /// The ranges of the item: one of `id`, and one of `minID` and `maxID`.
    fn ranges(&self) -> Result<Vec<(u16, u16)>, CniError> {
        let missing = |key| format!("minID and maxID should be configured simultaneously, {key} is missing");
        let range = match (self.min_id, self.max_id) {
            (Some(min), Some(max)) => Some((number(min, "minID")?, number(max, "maxID")?)),
            (None, Some(_)) => return Err(CniError::invalid_config(missing("minID"))),
            (Some(_), None) => return Err(CniError::invalid_config(missing("maxID"))),
            (None, None) => None,
        };
        if range.is_some_and(|(min, max)| min > max) {
            return Err(CniError::invalid_config("minID is greater than maxID in trunk parameter"));
        }
        let id = self.id.map(|id| number(id, "id")).transpose()?;
        Ok(range.into_iter().chain(id.map(|id| (id, id))).collect())
    }
}

/// Joins consecutive tagged VLANs. The kernel accepts no range of native ones.
fn ranges(numbers: impl Iterator<Item = (u16, u16)>) -> Vec<Vlans> {
    let mut ranges: Vec<Vlans> = Vec::new();
    for (number, flags) in numbers {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == number && range.flags == 0 && flags == 0 => range.last = number,
            _ => ranges.push(Vlans { first: number, last: number, flags }),
        }
    }
    ranges
}

impl VlanConf {
    /// Reads and checks `vlan`, `vlanTrunk` and `preserveDefaultVlan`.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 with the reference's texts.
    pub fn read(config: &NetConf) -> Result<VlanConf, CniError> {
        VlanConf::new(config.decode()?)
    }

    fn new(keys: Keys) -> Result<VlanConf, CniError> {
        let Keys { vlan, vlan_trunk: trunk, preserve_default_vlan: keep_default } = keys;
        let invalid = || format!("invalid VLAN ID {vlan} (must be between 0 and {LAST})");
        let number = u16::try_from(vlan).ok().filter(|number| *number <= LAST);
        let vlan = number.ok_or_else(|| CniError::invalid_config(invalid()))?;
        let wants_filtering = vlan != 0 || trunk.is_some();
        if !wants_filtering {
            return Ok(VlanConf::default());
        }
        let mut is_tagged = vec![false; usize::from(LAST) + 1];
        for item in trunk.unwrap_or_default() {
            let item = item.ok_or_else(|| CniError::invalid_config("vlanTrunk has an item that is null"))?;
            for (first, last) in item.ranges()? {
                is_tagged[usize::from(first)..=usize::from(last)].fill(true);
            }
        }
        let native = if vlan == 0 && is_tagged.contains(&true) { DEFAULT_NATIVE } else { vlan };
        let flags = |number: u16| match number {
            number if number == native => Some(PVID | UNTAGGED),
            number => is_tagged[usize::from(number)].then_some(0),
        };
        let numbers = (1..=LAST).filter_map(|number| Some((number, flags(number)?)));
        Ok(VlanConf { vlan, wants_filtering, wanted: ranges(numbers), keep_default })
    }

    /// A port that is only in this VLAN, as its native one.
    pub fn only(vlan: u16) -> VlanConf {
        let wanted = vec![Vlans { first: vlan, last: vlan, flags: PVID | UNTAGGED }];
        VlanConf { vlan, wants_filtering: true, wanted, keep_default: false }
    }

    /// The requests that put a port of the bridge into the VLANs. They may be repeated.
    pub fn steps(&self, bridge: &Link, port: &Link) -> Vec<Step> {
        let Some(filtering) = bridge.vlan_filtering.filter(|_| self.needs_filtering()) else {
            return Vec::new();
        };
        let (name, default) = (&port.name, filtering.default_pvid);
        let mut steps = Vec::new();
        if default != 0 && !self.keep_default {
            let default = Vlans { first: default, last: default, flags: 0 };
            let delete = bridge::delete_vlans(port.index, &[default]);
            let step = Step::new(format!("failed to remove default vlan on interface {name:?}"), delete);
            steps.push(step.unless(&[Errno::ENOENT]));
        }
        let add = bridge::add_vlans(port.index, &self.wanted);
        steps.push(Step::new(format!("failed to setup vlan tag on interface {name:?}"), add));
        steps
    }

    /// Whether the bridge has to filter, because the port is in VLANs of the configuration.
    pub fn needs_filtering(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Checks that the bridge filters, if the configuration needs it.
    ///
    /// # Errors
    /// Code 2 if the kernel was built without VLAN filtering. Code 999 if the bridge does not filter: other
    /// programs may use it, so ADD does not change that.
    pub fn check_bridge(&self, bridge: &Link) -> Result<(), CniError> {
        if !self.needs_filtering() {
            return Ok(());
        }
        let name = &bridge.name;
        let is_on = bridge.vlan_filtering.ok_or_else(|| self.unsupported())?.is_on;
        ensure(is_on, || {
            format!("bridge {name:?} does not filter VLANs, so vlan and vlanTrunk would have no effect")
        })
        .map_err(|error| error.with_remedy(format!("ip link set {name} type bridge vlan_filtering 1")))
    }

    /// The error of a kernel without VLAN filtering.
    pub fn unsupported(&self) -> CniError {
        let field = match self.vlan {
            0 => format!("\"vlanTrunk\" with value {}", self.text()),
            vlan => format!("\"vlan\" with value {vlan}"),
        };
        let msg = format!(
            "unsupported field {field}: the kernel has no VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING)"
        );
        let error = CniError::new(Code::UnsupportedField, msg);
        error.with_remedy("use a kernel that has it, or remove \"vlan\" and \"vlanTrunk\"")
    }

    /// The wanted VLANs, as in `1,100-110`.
    fn text(&self) -> String {
        let range = |vlans: &Vlans| match vlans {
            Vlans { first, last, .. } if first == last => first.to_string(),
            Vlans { first, last, .. } => format!("{first}-{last}"),
        };
        self.wanted.iter().map(range).collect::<Vec<_>>().join(",")
    }

    /// Compares the VLANs of a port with the wanted ones. These are no errors: further tagged VLANs, which another
    /// program may have added, and the bridge's default VLAN, which the reference kept before 1.8.
    pub fn check_port(&self, bridge: &Link, port: &str, present: &[Vlans]) -> Result<(), CniError> {
        if !self.needs_filtering() {
            return Ok(());
        }
        let flags_of = |number: u16| {
            present.iter().find(|vlans| (vlans.first..=vlans.last).contains(&number)).map(|vlans| vlans.flags)
        };
        for vlans in &self.wanted {
            let wrong = (vlans.first..=vlans.last).find(|number| flags_of(*number) != Some(vlans.flags));
            if let Some(number) = wrong {
                let how = if vlans.flags == 0 { "tagged" } else { "untagged" };
                return Err(CniError::internal(format!(
                    "bridge port {port:?} is not in VLAN {number}, {how}"
                )));
            }
        }
        self.foreign(bridge, present).next().map_or(Ok(()), |vlans| {
            let first = vlans.first;
            Err(CniError::internal(format!("bridge port {port:?} is in VLAN {first} too, untagged")))
        })
    }

    /// The untagged VLANs of a port that it should not be in, at least not in this way.
    pub fn foreign<'a>(&'a self, bridge: &Link, present: &'a [Vlans]) -> impl Iterator<Item = &'a Vlans> {
        let default = bridge.vlan_filtering.unwrap_or_default().default_pvid;
        present
            .iter()
            .filter(move |vlans| vlans.flags != 0 && vlans.first != default && !self.wanted.contains(vlans))
    }
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::netlink::bridge::VlanFiltering;

    use super::*;

    const NATIVE: u16 = PVID | UNTAGGED;

    fn vlans(ranges: &[(u16, u16, u16)]) -> Vec<Vlans> {
        ranges.iter().map(|&(first, last, flags)| Vlans { first, last, flags }).collect()
    }

    fn read(keys: &str) -> Result<VlanConf, CniError> {
        VlanConf::new(serde_json::from_str(keys).unwrap())
    }

    fn wanted(keys: &str) -> Vec<Vlans> {
        read(keys).unwrap().wanted
    }

    #[test]
    fn the_native_vlan_and_the_trunk() {
        assert_eq!(wanted("{}"), []);
        assert_eq!(wanted(r#"{"vlan":100}"#), vlans(&[(100, 100, NATIVE)]));
        let trunk = r#"{"vlanTrunk":[{"id":5},{"minID":100,"maxID":103,"id":104},{"id":102}]}"#;
        assert_eq!(wanted(trunk), vlans(&[(1, 1, NATIVE), (5, 5, 0), (100, 104, 0)]));
        let both = r#"{"vlan":102,"vlanTrunk":[{"minID":100,"maxID":104}]}"#;
        assert_eq!(wanted(both), vlans(&[(100, 101, 0), (102, 102, NATIVE), (103, 104, 0)]));
        assert_eq!(
            wanted(r#"{"vlanTrunk":[{"minID":1,"maxID":4094}]}"#),
            vlans(&[(1, 1, NATIVE), (2, 4094, 0)])
        );
    }

    #[test]
    fn a_new_bridge_filters_if_a_key_is_there() {
        for (keys, expected) in [
            ("{}", false),
            (r#"{"vlan":0,"vlanTrunk":null,"preserveDefaultVlan":true}"#, false),
            (r#"{"vlan":1}"#, true),
            (r#"{"vlanTrunk":[]}"#, true),
            (r#"{"vlanTrunk":[{}]}"#, true),
        ] {
            assert_eq!(read(keys).unwrap().wants_filtering, expected, "{keys}");
        }
    }

    #[test]
    fn errors_are_those_of_the_reference() {
        for (keys, text) in [
            (r#"{"vlan":4095}"#, "invalid VLAN ID 4095 (must be between 0 and 4094)"),
            (r#"{"vlan":-1}"#, "invalid VLAN ID -1 (must be between 0 and 4094)"),
            (r#"{"vlanTrunk":[{"minID":0,"maxID":5}]}"#, "incorrect trunk minID parameter"),
            (r#"{"vlanTrunk":[{"minID":1,"maxID":4095}]}"#, "incorrect trunk maxID parameter"),
            (r#"{"vlanTrunk":[{"id":4095}]}"#, "incorrect trunk id parameter"),
            (r#"{"vlanTrunk":[{"minID":9,"maxID":8}]}"#, "minID is greater than maxID in trunk parameter"),
            (
                r#"{"vlanTrunk":[{"maxID":8}]}"#,
                "minID and maxID should be configured simultaneously, minID is missing",
            ),
            (
                r#"{"vlanTrunk":[{"minID":8}]}"#,
                "minID and maxID should be configured simultaneously, maxID is missing",
            ),
            (r#"{"vlanTrunk":[null]}"#, "vlanTrunk has an item that is null"),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str(), error.details.as_str()),
                (Code::InvalidConfig, text, "")
            );
        }
    }

    #[test]
    fn a_bridge_without_filtering_is_refused() {
        let filtering = |vlan_filtering| Link { name: "br0".to_owned(), vlan_filtering, ..Link::default() };
        let conf = VlanConf::only(100);
        let on = |is_on| Some(VlanFiltering { is_on, default_pvid: 1 });
        assert!(conf.check_bridge(&filtering(on(true))).is_ok());
        assert!(VlanConf::default().check_bridge(&filtering(None)).is_ok());
        let error = conf.check_bridge(&filtering(on(false))).unwrap_err();
        assert_eq!(error.details, "remedy: ip link set br0 type bridge vlan_filtering 1");
        let error = conf.check_bridge(&filtering(None)).unwrap_err();
        assert_eq!(error.code, Code::UnsupportedField);
        assert!(error.msg.starts_with("unsupported field \"vlan\" with value 100: the kernel has no VLAN"));
    }

    #[test]
    fn the_default_vlan_is_removed_unless_it_is_kept() {
        let bridge =
            Link { vlan_filtering: Some(VlanFiltering { is_on: true, default_pvid: 1 }), ..Link::default() };
        let steps = |keys: &str| read(keys).unwrap().steps(&bridge, &Link::default()).len();
        assert_eq!(steps("{}"), 0);
        assert_eq!(steps(r#"{"vlan":5}"#), 2);
        assert_eq!(steps(r#"{"vlan":5,"preserveDefaultVlan":true}"#), 1);
    }

    #[test]
    fn check_finds_missing_and_untagged_vlans() {
        let conf = read(r#"{"vlan":100,"vlanTrunk":[{"minID":5,"maxID":9}]}"#).unwrap();
        let filtering = Some(VlanFiltering { is_on: true, default_pvid: 1 });
        let bridge = Link { vlan_filtering: filtering, ..Link::default() };
        let check = |ranges: &[(u16, u16, u16)]| {
            conf.check_port(&bridge, "v", &vlans(ranges)).map_err(|error| error.msg)
        };
        assert_eq!(check(&[(2, 3, 0), (5, 9, 0), (100, 100, NATIVE)]), Ok(()));
        let missing = |text: &str| Err(format!("bridge port \"v\" is not in VLAN {text}"));
        assert_eq!(check(&[(5, 8, 0), (100, 100, NATIVE)]), missing("9, tagged"));
        assert_eq!(check(&[(5, 9, 0), (100, 100, UNTAGGED)]), missing("100, untagged"));
        let foreign = check(&[(4, 4, UNTAGGED), (5, 9, 0), (100, 100, NATIVE)]);
        assert_eq!(foreign, Err("bridge port \"v\" is in VLAN 4 too, untagged".to_owned()));
        assert_eq!(check(&[(1, 1, UNTAGGED), (5, 9, 0), (100, 100, NATIVE)]), Ok(()));
    }
}
