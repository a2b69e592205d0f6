//! Networks as text in JSON.

use ipnetwork::IpNetwork;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub(crate) fn serialize<S: Serializer>(network: &IpNetwork, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(network)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNetwork, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// A network without host bits.
fn read(text: &str) -> Result<IpNetwork, String> {
    let network: IpNetwork = text.parse().map_err(|_| format!("{text:?} is no network"))?;
    if network.ip() == network.network() { Ok(network) } else { Err(format!("{text} has host bits")) }
}

/// Lists of networks.
pub(crate) mod list {
    use ipnetwork::IpNetwork;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(list: &[IpNetwork], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(IpNetwork::to_string))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<IpNetwork>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| super::read(text).map_err(D::Error::custom)).collect()
    }
}
