//! Decodes and checks the configuration: the limits, and whether they are static or the runtime's.

use cni_common::remark;
use cni_common::spec::{CniError, NetConf};
use serde::Deserialize;

/// The reference's maximum burst in bits: it stores bytes in 32 bits and excludes the largest value.
const MAX_BURST: u64 = 34_359_738_359;

/// If the top level has one of these keys, `runtimeConfig` is ignored.
const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// The limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits per second, at least 8.
    pub rate: u64,
    /// The bucket in bits: how much may pass at once after a pause.
    pub burst: u64,
    /// The queue, if the configuration has one.
    pub queue: Option<Queue>,
}

/// The length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// In bytes, with the bucket; tc's `limit`.
    Bytes(u32),
    /// In milliseconds of the rate, without the bucket: the longest delay of a packet; tc's `latency`.
    Milliseconds(u32),
}

/// How the kernel's parameters are computed from a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Parameters with which the kernel delivers the rate; see [`crate::shape`].
    #[default]
    Delivering,
    /// The reference's parameters, including its overflows.
    Reference,
}

/// A checked configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    /// The limit of traffic to the container.
    pub ingress: Option<Limit>,
    /// The limit of traffic from the container.
    pub egress: Option<Limit>,
    /// How the kernel's parameters are computed.
    pub numbers: Numbers,
    /// The queues of both directions, also of one without a limit: ingress, egress.
    pub queues: [Option<Queue>; 2],
}

/// The keys that the top level and `runtimeConfig.bandwidth` have.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Limits {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    reference_numbers: bool,
    ingress_limit: u32,
    ingress_latency: u32,
    egress_limit: u32,
    egress_latency: u32,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Limits,
}

impl Conf {
    /// Reads the configuration. A limit at the top level, even 0 or `null`, replaces all of the runtime's
    /// limits.
    ///
    /// # Errors
    /// Code 6 for a value that cannot be decoded, 7 for an invalid one. The texts are the reference's where
    /// it has one.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let (wire, top): (Wire, Limits) = (config.decode()?, config.decode()?);
        let is_static = KEYS.iter().any(|key| config.has_key(key));
        let limits = if is_static { top } else { wire.runtime_config.bandwidth };
        let numbers = if wire.reference_numbers { Numbers::Reference } else { Numbers::Delivering };
        let queues = [
            queue("ingress", wire.ingress_limit, wire.ingress_latency)?,
            queue("egress", wire.egress_limit, wire.egress_latency)?,
        ];
        Ok(Conf {
            ingress: limit("ingress", limits.ingress_rate, limits.ingress_burst, queues[0])?,
            egress: limit("egress", limits.egress_rate, limits.egress_burst, queues[1])?,
            numbers,
            queues,
        })
    }

    /// Whether neither direction is limited.
    pub fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// The limit of one direction. The reference's tests compare the whole text of the first three errors, so the
/// keys go to standard error.
fn limit(direction: &str, rate: u64, burst: u64, queue: Option<Queue>) -> Result<Option<Limit>, CniError> {
    let invalid = |msg: &str| {
        remark!("{direction}Rate is {rate} and {direction}Burst is {burst}");
        CniError::invalid_config(msg)
    };
    match (rate, burst) {
        (0, 0) => Ok(None),
        (_, 0) => Err(invalid("if rate is set, burst must also be set")),
        (0, _) => Err(invalid("if burst is set, rate must also be set")),
        (_, burst) if burst > MAX_BURST => Err(invalid("burst cannot be more than 4GB")),
        (rate, _) if rate < 8 => Err(invalid(&format!(
            "{direction}Rate: {rate} bit/s is less than one byte per second, the kernel's minimum"
        ))),
        (rate, burst) => Ok(Some(Limit { rate, burst, queue })),
    }
}

fn queue(direction: &str, limit: u32, latency: u32) -> Result<Option<Queue>, CniError> {
    match (limit, latency) {
        (0, 0) => Ok(None),
        (bytes, 0) => Ok(Some(Queue::Bytes(bytes))),
        (0, milliseconds) => Ok(Some(Queue::Milliseconds(milliseconds))),
        _ => Err(CniError::invalid_config(format!(
            "only one of {direction}Limit and {direction}Latency can be set"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    fn read(keys: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bandwidth"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?)
    }

    const TEN: Option<Limit> = Some(Limit { rate: 10_000_000, burst: 4_294_967_295, queue: None });

    #[test]
    fn keys_of_containerd_and_crio() {
        let containerd = r#","runtimeConfig":{"bandwidth":{"IngressRate":10000000,"IngressBurst":4294967295,"EgressRate":0,"EgressBurst":0}}"#;
        assert_eq!(read(containerd), Ok(Conf { ingress: TEN, ..Conf::default() }));
        let crio = r#","runtimeConfig":{"bandwidth":{"egressBurst":34359738359,"egressRate":10000000,"ingressBurst":0,"ingressRate":0}}"#;
        let egress = Some(Limit { rate: 10_000_000, burst: MAX_BURST, queue: None });
        assert_eq!(read(crio), Ok(Conf { egress, ..Conf::default() }));
        let other = r#","RUNTIMECONFIG":{"bandWidth":{"INGRESSRATE":10000000,"ingressburst":4294967295}}"#;
        assert_eq!(read(other), Ok(Conf { ingress: TEN, ..Conf::default() }));
    }

    #[test]
    fn values_of_64_bits() {
        let conf = read(r#","ingressRate":18446744073709551615,"ingressBurst":34359738359"#).unwrap();
        assert_eq!(conf.ingress.unwrap().rate, u64::MAX);
        for bad in ["-1", "8000.0", "1e6", r#""8000""#, "18446744073709551616"] {
            let error = read(&format!(r#","ingressRate":{bad},"ingressBurst":8"#)).unwrap_err();
            assert_eq!(error.code, Code::Decode, "{bad}");
        }
    }

    #[test]
    fn top_level_limits_replace_the_runtimes() {
        let runtime = r#","runtimeConfig":{"bandwidth":{"ingressRate":10000000,"ingressBurst":4294967295}}"#;
        assert_eq!(read(runtime).unwrap().ingress, TEN);
        for key in ["ingressRate", "ingressBurst", "egressRate", "egressBurst", "EGRESSBURST"] {
            for nothing in ["0", "null"] {
                let conf = read(&format!(r#"{runtime},"{key}":{nothing}"#)).unwrap();
                assert!(conf.is_empty(), "{key}: {nothing}");
            }
        }
        let conf = read(&format!(r#"{runtime},"egressRate":8000,"egressBurst":80"#)).unwrap();
        assert_eq!(conf.ingress, None);
        assert_eq!(conf.egress, Some(Limit { rate: 8000, burst: 80, queue: None }));
    }

    #[test]
    fn absent_and_null_limits() {
        assert!(read("").unwrap().is_empty());
        assert!(read(r#","runtimeConfig":null,"shapedSubnets":["10.0.0.0/8"]"#).unwrap().is_empty());
        assert!(read(r#","runtimeConfig":{"bandwidth":null}"#).unwrap().is_empty());
    }

    #[test]
    fn errors_have_the_references_texts() {
        for (keys, msg) in [
            (r#","ingressRate":8,"ingressBurst":0"#, "if rate is set, burst must also be set"),
            (r#","ingressBurst":8"#, "if burst is set, rate must also be set"),
            (r#","egressRate":8"#, "if rate is set, burst must also be set"),
            (r#","ingressRate":8,"ingressBurst":34359738360"#, "burst cannot be more than 4GB"),
            (r#","ingressRate":8,"egressBurst":8"#, "if rate is set, burst must also be set"),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, msg), "{keys}");
        }
        assert!(read(r#","ingressRate":8,"ingressBurst":34359738359"#).is_ok());
        let error = read(r#","egressRate":7,"egressBurst":8"#).unwrap_err();
        assert!(error.msg.contains("egressRate: 7 bit/s"), "{error}");
    }

    /// They are no static limits: the rates are the runtime's.
    #[test]
    fn queues() {
        let runtime = r#","runtimeConfig":{"bandwidth":{"ingressRate":8000,"ingressBurst":80}}"#;
        let conf = read(&format!(r#"{runtime},"ingressLimit":3000,"egressLatency":50"#)).unwrap();
        let limit = Limit { rate: 8000, burst: 80, queue: Some(Queue::Bytes(3000)) };
        assert_eq!((conf.ingress, conf.queues[1]), (Some(limit), Some(Queue::Milliseconds(50))));
        let error = read(r#","egressLimit":1,"egressLatency":1"#).unwrap_err();
        assert_eq!(
            (error.code.number(), &*error.msg),
            (7, "only one of egressLimit and egressLatency can be set")
        );
        assert_eq!(read(r#","egressLimit":4294967296"#).unwrap_err().code.number(), 6);
    }

    #[test]
    fn reference_numbers_key() {
        assert_eq!(read(r#","referenceNumbers":true"#).unwrap().numbers, Numbers::Reference);
        assert_eq!(read(r#","referenceNumbers":null"#).unwrap().numbers, Numbers::Delivering);
    }
}
