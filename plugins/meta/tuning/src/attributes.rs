//! The attributes of the container's link: one row of `ATTRIBUTES` for each says how to decode, read, change and compare it.

use std::fmt;

use cni_common::spec::{CniError, Json};
use ferrule_kernel::netlink::link::{self, IFF_ALLMULTI, IFF_PROMISC};
use ferrule_kernel::netlink::{Link, Mac, Message};
use ferrule_kit::check::ensure;
use ferrule_kit::steps::Step;
use serde::ser::{Serialize, Serializer};

/// An attribute of a link.
struct Attribute {
    /// The key in the configuration and in the state file.
    key: &'static str,
    /// What a step sets.
    what: &'static str,
    /// The reference's text if the link has another value; `NAME` stands for the name of the link.
    configured: &'static str,
    /// The values, and how the kernel has them.
    kind: Kind,
}

enum Kind {
    Mac,
    /// A flag of the link.
    Flag(u32),
    /// How to read a number, and how to change it.
    Number(fn(&Link) -> u32, fn(u32, u32) -> Message),
}

const fn row(key: &'static str, what: &'static str, configured: &'static str, kind: Kind) -> Attribute {
    Attribute { key, what, configured, kind }
}

/// All attributes, in the order of the state file and of ADD's steps.
const ATTRIBUTES: [Attribute; 5] = [
    row(MAC, "MAC address", "configured Ethernet of NAME", Kind::Mac),
    row(PROMISC, "promiscuous mode", "link NAME configured promisc", Kind::Flag(IFF_PROMISC)),
    row(MTU, "MTU", "configured MTU of NAME", Kind::Number(|link| link.mtu, link::set_mtu)),
    row("allmulti", "all-multicast mode", "configured all-multicast mode of NAME", Kind::Flag(IFF_ALLMULTI)),
    row(
        "txQLen",
        "transmit queue length",
        "configured Transmit Queue Length of NAME",
        Kind::Number(|link| link.tx_queue_len, link::set_tx_queue_len),
    ),
];
const MAC: &str = "mac";
const PROMISC: &str = "promisc";
const MTU: &str = "mtu";

/// Whether a key is that of an attribute.
pub fn is_key(key: &str) -> bool {
    ATTRIBUTES.iter().any(|attribute| attribute.key == key)
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Mac(Mac),
    Flag(bool),
    /// A configuration may have a number that is not one of 32 bits.
    Number(i64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Mac(mac) => mac.fmt(f),
            Value::Flag(on) => on.fmt(f),
            Value::Number(number) => number.fmt(f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Mac(mac) => serializer.collect_str(mac),
            Value::Flag(on) => serializer.serialize_bool(*on),
            Value::Number(number) => serializer.serialize_i64(*number),
        }
    }
}

impl Attribute {
    /// Decodes a value. `None` for an invalid MAC address.
    fn decode(&self, value: &Json) -> Result<Option<Value>, String> {
        let wrong = |error: &dyn fmt::Display| format!("{}: {error}", self.key);
        Ok(match self.kind {
            Kind::Mac => {
                value.decode::<String>().map_err(|error| wrong(&error))?.parse().ok().map(Value::Mac)
            }
            Kind::Flag(_) => Some(Value::Flag(value.decode().map_err(|error| wrong(&error))?)),
            Kind::Number(..) => Some(Value::Number(value.decode().map_err(|error| wrong(&error))?)),
        })
    }

    fn of(&self, link: &Link) -> Value {
        match self.kind {
            Kind::Mac => Value::Mac(link.mac),
            Kind::Flag(flag) => Value::Flag(link.flags & flag != 0),
            Kind::Number(get, _) => Value::Number(get(link).into()),
        }
    }

    /// The request that gives the link with this index the value. `None` for a number out of range.
    fn set(&self, index: u32, value: Value) -> Option<Message> {
        match (&self.kind, value) {
            (Kind::Mac, Value::Mac(mac)) => Some(link::set_mac(index, mac)),
            (Kind::Flag(flag), Value::Flag(on)) => {
                Some(link::set_flags(index, if on { *flag } else { 0 }, *flag))
            }
            (Kind::Number(_, set), Value::Number(number)) => Some(set(index, u32::try_from(number).ok()?)),
            _ => None,
        }
    }
}

/// Values of attributes, in the order of their rows. An attribute without one stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes([Option<Value>; ATTRIBUTES.len()]);

impl Attributes {
    /// Decodes the keys of an object.
    ///
    /// # Errors
    /// The key with a value of the wrong type.
    pub fn read(json: &Json) -> Result<Self, String> {
        let mut attributes = Attributes::default();
        for (attribute, value) in ATTRIBUTES.iter().zip(&mut attributes.0) {
            if let Some(json) = json.get(attribute.key) {
                *value = attribute.decode(json)?;
            }
        }
        Ok(attributes)
    }

    /// These attributes of a configuration with its MAC address. `mtu` 0 and `promisc` false leave the link as it is.
    ///
    /// # Errors
    /// Code 7 for a number that is not one of 32 bits.
    pub fn configured(self, mac: Option<Mac>) -> Result<Self, CniError> {
        let mut attributes = Attributes::default();
        for ((Attribute { key, .. }, value), to) in ATTRIBUTES.iter().zip(self.0).zip(&mut attributes.0) {
            *to = match (*key, value) {
                (MAC, _) => mac.map(Value::Mac),
                (MTU, Some(Value::Number(0))) | (PROMISC, Some(Value::Flag(false))) => None,
                (_, Some(Value::Number(number))) if u32::try_from(number).is_err() => {
                    let why = format!("invalid {key} {number}: not a number of 32 bits");
                    return Err(CniError::invalid_config(why));
                }
                _ => value,
            };
        }
        Ok(attributes)
    }

    /// The MAC address.
    pub fn mac(&self) -> Option<Mac> {
        self.values().find_map(|(_, value)| if let Value::Mac(mac) = value { Some(mac) } else { None })
    }

    /// The MTU in bytes.
    pub fn mtu(&self) -> Option<u32> {
        self.values().find_map(|(attribute, value)| match value {
            Value::Number(mtu) if attribute.key == MTU => u32::try_from(mtu).ok(),
            _ => None,
        })
    }

    /// Whether no attribute changes.
    pub fn is_empty(&self) -> bool {
        *self == Attributes::default()
    }

    fn values(&self) -> impl Iterator<Item = (&'static Attribute, Value)> {
        const ROWS: &[Attribute] = &ATTRIBUTES;
        ROWS.iter().zip(self.0).filter_map(|(attribute, value)| Some((attribute, value?)))
    }

    /// The link's values of the attributes that `self` has.
    pub fn of(&self, link: &Link) -> Attributes {
        Attributes(std::array::from_fn(|index| self.0[index].map(|_| ATTRIBUTES[index].of(link))))
    }

    /// Those of these attributes that the link does not have.
    pub fn differing(&self, link: &Link) -> Attributes {
        let differs = |index: usize| move |value: &Value| *value != ATTRIBUTES[index].of(link);
        Attributes(std::array::from_fn(|index| self.0[index].filter(differs(index))))
    }

    /// These attributes, and those of `other` that are missing here.
    pub fn or(&self, other: &Attributes) -> Attributes {
        Attributes(std::array::from_fn(|index| self.0[index].or(other.0[index])))
    }

    /// The steps that give the link these attributes. To undo one, it gets its present value.
    pub fn steps(&self, link: &Link) -> Vec<Step> {
        let step = |(attribute, value): (&Attribute, Value)| {
            let set = attribute.set(link.index, value)?;
            let step = Step::new(format!("set the {} {value} of {:?}", attribute.what, link.name), set);
            Some(step.undone_by(attribute.set(link.index, attribute.of(link))?))
        };
        self.values().filter_map(step).collect()
    }

    /// Checks that the link has these attributes.
    ///
    /// # Errors
    /// The reference's text with the first attribute that has another value.
    pub fn check(&self, link: &Link) -> Result<(), CniError> {
        self.values().try_for_each(|(attribute, wanted)| {
            let is = attribute.of(link);
            ensure(is == wanted, || {
                let configured = attribute.configured.replace("NAME", &link.name);
                format!("Error: Tuning {configured} is {wanted}, current value is {is}")
            })
        })
    }
}

/// The step that gives a link this MTU in bytes.
pub fn mtu_step(link: &Link, mtu: u32) -> Step {
    let step = Step::new(format!("set the MTU {mtu} of {:?}", link.name), link::set_mtu(link.index, mtu));
    step.undone_by(link::set_mtu(link.index, link.mtu))
}

impl Serialize for Attributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.values().map(|(attribute, value)| (attribute.key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_has_the_references_texts() {
        let link = Link { name: "eth0".to_owned(), mtu: 1500, tx_queue_len: 77, ..Link::default() };
        for (keys, text) in [
            (
                r#"{"mac":"02:00:00:00:00:0a"}"#,
                "Ethernet of eth0 is 02:00:00:00:00:0a, current value is 00:00:00:00:00:00",
            ),
            (r#"{"promisc":true}"#, "link eth0 configured promisc is true, current value is false"),
            (r#"{"MTU":1400}"#, "MTU of eth0 is 1400, current value is 1500"),
            (r#"{"allmulti":true}"#, "all-multicast mode of eth0 is true, current value is false"),
            (r#"{"txQLen":5}"#, "Transmit Queue Length of eth0 is 5, current value is 77"),
        ] {
            let wanted = Attributes::read(&Json::parse(keys.as_bytes()).unwrap()).unwrap();
            let msg = wanted.check(&link).unwrap_err().msg;
            assert!(msg.starts_with("Error: Tuning ") && msg.ends_with(text), "{msg}");
            wanted.of(&link).check(&link).unwrap();
            assert_eq!(wanted.steps(&link).len(), 1);
        }
        Attributes::default().check(&link).unwrap();
    }
}
