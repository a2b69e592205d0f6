//! The attached file: what ADD makes of a pod's claims, for the verbs after it and for the driver, which reports it in the claims' status.
//! `ATTACHED/CONTAINER_ID:IFNAME.json`. Pure.
//!
//! ADD writes it before its first change, and again with the outcomes after its last one. DEL removes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Object;
use super::record::{PodRef, Ref};

/// The format of the files that this version writes and reads.
pub const VERSION: u32 = 1;

/// An attachment of a pod with claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Attached {
    /// [`VERSION`].
    pub version: u32,
    /// The network's name.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME of the attachment, which is the pod's first interface.
    pub ifname: String,
    /// CNI_NETNS.
    pub netns: String,
    /// The driver's name.
    pub driver: String,
    /// The pod.
    pub pod: PodRef,
    /// An entry for each device, in the order in which ADD makes them.
    pub steps: Vec<Step>,
}

/// What ADD makes of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// The claim.
    pub claim: Ref,
    /// The request of the claim.
    pub request: String,
    /// The pool of the device.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// The name of its link on the host.
    pub link: String,
    /// The interface in the pod.
    pub if_name: String,
    /// The link on the host that ADD has set up, because it was down and the interface is made on it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raised: Option<String>,
    /// The configurations of the plugins that ADD calls for it, in this order.
    pub plugins: Vec<Object>,
    /// The outcome; `None` until ADD has succeeded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
}

/// The interface that ADD has made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Its hardware address.
    pub mac: String,
    /// Its addresses, with prefix lengths.
    pub ips: Vec<String>,
    /// The result of the last plugin, in the layout of CNI 1.1.0.
    pub result: Object,
}

impl Attached {
    /// Reads the file; `None` if it is torn, as a loss of power may leave it.
    ///
    /// # Errors
    /// Another version has written it.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Ok(json) = serde_json::from_slice::<Value>(bytes) else { return Ok(None) };
        if json["version"] != VERSION {
            return Err(format!("version {} is not {VERSION}", json["version"]));
        }
        serde_json::from_value(json).map(Some).map_err(|error| error.to_string())
    }

    /// The file's content.
    ///
    /// # Errors
    /// Never, with values that JSON can have.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    /// Whether ADD has succeeded.
    pub fn is_complete(&self) -> bool {
        self.steps.iter().all(|step| step.outcome.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mut attached = Attached { version: VERSION, steps: vec![Step::default()], ..Attached::default() };
        assert!(!attached.is_complete());
        attached.steps[0].outcome =
            Some(Outcome { mac: "02:00:00:00:00:01".to_owned(), ..Outcome::default() });
        assert!(attached.is_complete());
        let bytes = attached.to_bytes().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(Attached::parse(&bytes[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(Attached::parse(&bytes), Ok(Some(attached.clone())));
        attached.version = 2;
        assert_eq!(Attached::parse(&attached.to_bytes().unwrap()).unwrap_err(), "version 2 is not 1");
        assert_eq!(Attached::parse(b"{}").unwrap_err(), "version null is not 1");
        assert_eq!(Attached::parse(br#"{"version":1}"#).unwrap_err(), "missing field `network`");
    }
}
