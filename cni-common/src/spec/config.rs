//! The network configuration: the fields that every plugin reads, and decoding of plugin-specific fields.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{CniError, Code};
use super::ident::check_network_name;
use super::json::{Json, JsonError};
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

/// An attachment that the runtime lists as valid in a GC request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// The container ID (CNI_CONTAINERID).
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The name of the interface in the container (CNI_IFNAME).
    pub ifname: String,
}

/// The error for a part of the configuration that cannot be decoded.
fn undecoded(part: &str) -> impl Fn(JsonError) -> CniError {
    move |error| CniError::new(Code::Decode, format!("{part}: {error}"))
}

impl NetConf {
    /// Decodes a configuration and checks the network name. Does not check the version, see
    /// [`NetConf::version`].
    ///
    /// # Errors
    /// Code 6 if `raw` is not a JSON object or `cniVersion` or `name` is not a string. Code 7 if the name is
    /// missing or invalid.
    pub fn parse(raw: Vec<u8>) -> Result<Self, CniError> {
        let json = Json::parse(&raw).map_err(undecoded("error unmarshall network config"))?;
        let header: Header = json.decode().map_err(undecoded("error unmarshall network config"))?;
        check_network_name(&header.name)?;
        Ok(NetConf { raw, json, header })
    }

    /// The network name.
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// The unchanged bytes of the configuration, which a delegate receives.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The text of `cniVersion`; empty if the configuration has none.
    pub fn version_text(&self) -> &str {
        &self.header.cni_version
    }

    /// The version of the configuration.
    ///
    /// # Errors
    /// Code 1 if `supported` does not contain the version.
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

    /// Checks that `cniVersion` has the syntax of a version. CHECK, GC and STATUS check this first.
    ///
    /// # Errors
    /// Code 6 if the syntax is wrong.
    pub fn check_version_form(&self) -> Result<(), CniError> {
        match self.version_text() {
            "" => Ok(()),
            text => is_well_formed(text).map_err(|why| CniError::new(Code::Decode, why)),
        }
    }

    /// Decodes the configuration into the plugin's own type by Go's rules, see [`super::json`].
    ///
    /// # Errors
    /// Code 6; the message names the path of the offending value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        self.json.decode().map_err(undecoded("failed to load netconf"))
    }

    /// True if the top-level object has `key` (case-insensitive), even if its value is null.
    pub fn has_key(&self, key: &str) -> bool {
        self.json.has_key(key)
    }

    /// The name of the IPAM plugin, `ipam.type`. `None` if the network has no IPAM: `ipam` is absent, `null`
    /// or `{}`, or the type is empty.
    ///
    /// # Errors
    /// Code 6 if `ipam` has any other form: a typing error must not leave a container without an address.
    pub fn ipam_type(&self) -> Result<Option<String>, CniError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Ipam {
            r#type: String,
        }
        let Some(ipam) = &self.header.ipam else { return Ok(None) };
        let ipam: Ipam = ipam.decode().map_err(undecoded("ipam"))?;
        Ok(Some(ipam.r#type).filter(|name| !name.is_empty()))
    }

    /// `prevResult`: the result of the preceding plugin (ADD), or of the whole chain (CHECK, DEL). `None` if
    /// the configuration has none.
    ///
    /// # Errors
    /// Code 7 if `prevResult` does not have the result layout of `version`.
    pub fn prev_result(&self, version: SpecVersion) -> Result<Option<AddResult>, CniError> {
        self.header.prev_result.as_ref().map(|json| AddResult::from_prev_result(json, version)).transpose()
    }

    /// The attachments that GC must keep. Runtimes write an empty list as `[]`, as `null`, or omit the key.
    /// libcni omits it if its GC is called without arguments; it has deleted every attachment in its cache
    /// before that.
    ///
    /// # Errors
    /// Code 6 if the list cannot be decoded.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>, CniError> {
        let list = self.header.valid_attachments.as_ref().or(self.header.attachments.as_ref());
        list.map_or_else(
            || Ok(Vec::new()),
            |list| list.decode().map_err(undecoded("cni.dev/valid-attachments")),
        )
    }
}
