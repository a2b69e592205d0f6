//! The messages of PodResources v1, without what no plugin needs: CPUs, memory and dynamic resources. Pure.
//!
//! # References
//! `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`, whose numbers have not changed from Kubernetes 1.20 to 1.36.

use super::protobuf::{Fields, Malformed, Value, put_text};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its containers.
    pub containers: Vec<Container<'a>>,
}

/// A container of a pod. Kubelets do not list init containers that end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its devices, in several entries for one resource: since about 1.22 one for each device and NUMA node.
    pub devices: Vec<Devices<'a>>,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices<'a> {
    /// The resource's name.
    pub resource: &'a str,
    /// The device plugin's IDs.
    pub ids: Vec<&'a str>,
}

/// Decodes the answer to `List`.
///
/// # Errors
/// The bytes are no such message.
pub fn list(answer: &[u8]) -> Result<Vec<Pod<'_>>, Malformed> {
    let mut pods = Vec::new();
    each(answer, |number, value| {
        if number == 1 {
            pods.push(pod(value.bytes()?)?);
        }
        Ok(())
    })?;
    Ok(pods)
}

/// Decodes the answer to `Get`.
///
/// # Errors
/// As [`list`].
pub fn get(answer: &[u8]) -> Result<Pod<'_>, Malformed> {
    // One field of the same number as in the answer to `List`.
    Ok(list(answer)?.pop().unwrap_or_default())
}

/// Encodes the request of `Get`.
pub fn get_request(namespace: &str, name: &str) -> Vec<u8> {
    let mut request = Vec::new();
    put_text(&mut request, 1, name);
    put_text(&mut request, 2, namespace);
    request
}

/// Decodes the answer to `GetAllocatableResources`: all healthy devices, also those that pods have.
///
/// # Errors
/// As [`list`].
pub fn allocatable(answer: &[u8]) -> Result<Vec<Devices<'_>>, Malformed> {
    let mut found = Vec::new();
    each(answer, |number, value| {
        if number == 1 {
            found.push(devices(value.bytes()?)?);
        }
        Ok(())
    })?;
    Ok(found)
}

fn each<'a>(
    message: &'a [u8],
    mut take: impl FnMut(u64, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    Fields(message).try_for_each(|field| field.and_then(|(number, value)| take(number, value)))
}

fn pod(message: &[u8]) -> Result<Pod<'_>, Malformed> {
    let mut pod = Pod::default();
    each(message, |number, value| {
        match number {
            1 => pod.name = value.text()?,
            2 => pod.namespace = value.text()?,
            3 => pod.containers.push(container(value.bytes()?)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(pod)
}

fn container(message: &[u8]) -> Result<Container<'_>, Malformed> {
    let mut container = Container::default();
    each(message, |number, value| {
        match number {
            1 => container.name = value.text()?,
            2 => container.devices.push(devices(value.bytes()?)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(container)
}

fn devices(message: &[u8]) -> Result<Devices<'_>, Malformed> {
    let mut devices = Devices::default();
    each(message, |number, value| {
        match number {
            1 => devices.resource = value.text()?,
            2 => devices.ids.push(value.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Two pods as a kubelet of 1.27 lists them: one entry for each device and NUMA node, CPUs, memory, topology.
    const LIST: &[u8] = b"\x0a\x58\x0a\x03web\x12\x04shop\x1a\x4b\
        \x0a\x04main\
        \x12\x1b\x0a\x0fferrule.dev/nic\x12\x04eth2\x1a\x02\x0a\x00\
        \x12\x1d\x0a\x0fferrule.dev/nic\x12\x04eth1\x1a\x04\x0a\x02\x08\x01\
        \x1a\x02\x02\x03\
        \x22\x03\x0a\x01x\
        \x0a\x09\x0a\x02db\x12\x03def";

    #[test]
    fn pods_and_their_devices() {
        let pods = list(LIST).unwrap();
        let devices = |id| Devices { resource: "ferrule.dev/nic", ids: vec![id] };
        let main = Container { name: "main", devices: vec![devices("eth2"), devices("eth1")] };
        let web = Pod { name: "web", namespace: "shop", containers: vec![main] };
        let db = Pod { name: "db", namespace: "def", containers: vec![] };
        assert_eq!(pods, [web.clone(), db]);
        assert_eq!(get(&LIST[..90]).unwrap(), web);
        assert_eq!((list(b""), get(b"").unwrap()), (Ok(vec![]), Pod::default()));
    }

    #[test]
    fn allocatable_devices() {
        let answer = b"\x0a\x19\x0a\x0fferrule.dev/nic\x12\x02e1\x12\x02e2\x12\x02\x00\x01";
        let nics = Devices { resource: "ferrule.dev/nic", ids: vec!["e1", "e2"] };
        assert_eq!(allocatable(answer).unwrap(), [nics]);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        for end in 1..LIST.len() {
            // 90 bytes are the first pod.
            assert_eq!(list(&LIST[..end]).is_ok(), end == 90, "{end}");
        }
        assert!(list(b"\x0a\x03\x0a\x01\xff").is_err());
    }

    proptest! {
        /// No bytes make the decoder panic. Bytes that begin a message of some level are more frequent than others.
        #[test]
        fn any_answer(bytes in vec(prop_oneof![Just(0x0a), Just(0x1a), Just(0x12), 0..12_u8, any::<u8>()], 0..60)) {
            let _ = (list(&bytes), get(&bytes), allocatable(&bytes));
        }
    }
}
