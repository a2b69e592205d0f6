//! The key `ipMasqBackend`.

use cni_common::spec::CniError;

/// How the rules are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// In the reference's nftables table, over netlink.
    #[default]
    Nftables,
    /// In the chains of the reference's iptables backend, by the iptables programs.
    Iptables,
}

impl Backend {
    /// The backend that `ipMasqBackend` names; nftables if the key is absent or empty.
    ///
    /// # Errors
    /// Code 7 with the reference's text for an unknown name.
    pub fn parse(name: &str) -> Result<Self, CniError> {
        match name {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            other => Err(CniError::invalid_config(format!("unknown ipmasq backend {other:?}"))
                .with_details("ipMasqBackend is nftables or iptables")),
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    #[test]
    fn names() {
        for (name, backend) in
            [("", Backend::Nftables), ("nftables", Backend::Nftables), ("iptables", Backend::Iptables)]
        {
            assert_eq!(Backend::parse(name), Ok(backend));
        }
        let error = Backend::parse("IPtables").unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (Code::InvalidConfig, "unknown ipmasq backend \"IPtables\"")
        );
    }
}
