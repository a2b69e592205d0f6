//! The network configuration: what every plugin reads of it, and the way to the rest.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{CniError, Code};
use super::ident::check_network_name;
use super::json::Json;
use super::result::AddResult;
use super::version::{SpecVersion, is_well_formed};

/// A plugin's configuration, read from standard input.
#[derive(Clone, Debug)]
pub struct NetConf {
    raw: Vec<u8>,
    json: Json,
    header: Header,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    name: String,
    ipam: Option<Json>,
    #[serde(rename = "prevResult")]
    prev_result: Option<Json>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Json>,
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Json>,
}

/// What a GC lists as alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// The container's ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in the container.
    pub ifname: String,
}

impl NetConf {
    /// Decodes a configuration and checks its network name. Its version is judged by [`NetConf::version`].
    ///
    /// # Errors
    /// Code 6 if it is no JSON object or `cniVersion` or `name` is no text, code 7 if the name is missing or bad.
    pub fn parse(raw: Vec<u8>) -> Result<Self, CniError> {
        let decode = |error: &dyn std::fmt::Display| {
            CniError::new(Code::Decode, format!("error unmarshall network config: {error}"))
        };
        let json = Json::parse(&raw).map_err(|error| decode(&error))?;
        let header: Header = json.decode().map_err(|error| decode(&error))?;
        check_network_name(&header.name)?;
        Ok(NetConf { raw, json, header })
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// The bytes as they came, for a delegate.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The text of `cniVersion`, perhaps empty.
    pub fn version_text(&self) -> &str {
        &self.header.cni_version
    }

    /// The configuration's version, if the plugin supports it.
    ///
    /// # Errors
    /// Code 1 if it does not.
    pub fn version(&self, supported: &[SpecVersion]) -> Result<SpecVersion, CniError> {
        SpecVersion::parse(self.version_text()).filter(|version| supported.contains(version)).ok_or_else(
            || {
                let supported: Vec<String> = supported.iter().map(|v| format!("{:?}", v.as_str())).collect();
                CniError::new(Code::IncompatibleVersion, "incompatible CNI versions").with_details(format!(
                    "config is {:?}, plugin supports [{}]",
                    self.version_text(),
                    supported.join(" ")
                ))
            },
        )
    }

    /// Whether `cniVersion` has the form of a version: what CHECK, GC and STATUS ask first.
    ///
    /// # Errors
    /// Code 6 if it has not.
    pub fn check_version_form(&self) -> Result<(), CniError> {
        match self.version_text() {
            "" => Ok(()),
            text => is_well_formed(text).map_err(|why| CniError::new(Code::Decode, why)),
        }
    }

    /// Decodes the plugin's own part by Go's key rules, see [`super::json`].
    ///
    /// # Errors
    /// Code 6 with the place and what is wrong there.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        self.json
            .decode()
            .map_err(|error| CniError::new(Code::Decode, format!("failed to load netconf: {error}")))
    }

    /// Whether the configuration has `key` at its top level, spelled in any case, and be its value null.
    pub fn has_key(&self, key: &str) -> bool {
        self.json.has_key(key)
    }

    /// The IPAM plugin's name, `ipam.type`. `None` where the network has no IPAM: absent, `null`, `{}` or an empty type.
    ///
    /// # Errors
    /// Code 6 if it is anything else: a container must not go without an address because of a slip.
    pub fn ipam_type(&self) -> Result<Option<String>, CniError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Ipam {
            r#type: String,
        }
        let Some(ipam) = &self.header.ipam else { return Ok(None) };
        let ipam: Ipam =
            ipam.decode().map_err(|error| CniError::new(Code::Decode, format!("ipam: {error}")))?;
        Ok(Some(ipam.r#type).filter(|name| !name.is_empty()))
    }

    /// The result of the plugins before this one (ADD), or of the whole chain (CHECK, DEL).
    ///
    /// # Errors
    /// Code 7 if it is there and cannot be read as of `version`.
    pub fn prev_result(&self, version: SpecVersion) -> Result<Option<AddResult>, CniError> {
        self.header.prev_result.as_ref().map(|json| AddResult::from_prev_result(json, version)).transpose()
    }

    /// The attachments that GC must leave alone. An empty set arrives as `[]`, as `null`, or without the key (libcni's
    /// GC without arguments, which has deleted every attachment it knew of before it asks).
    ///
    /// # Errors
    /// Code 6 if the list cannot be read.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>, CniError> {
        let Some(list) = self.header.valid_attachments.as_ref().or(self.header.attachments.as_ref()) else {
            return Ok(Vec::new());
        };
        list.decode()
            .map_err(|error| CniError::new(Code::Decode, format!("cni.dev/valid-attachments: {error}")))
    }
}
