//! The kubelet's service PodResources v1: the devices of one pod.
//!
//! # References
//! `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`, whose numbers have not changed from Kubernetes 1.20 to 1.36;
//! <https://protobuf.dev/programming-guides/encoding/>

use std::path::Path;
use std::time::{Duration, Instant};
use std::{process, thread};

use crate::grpc::{self, Error, RESOURCE_EXHAUSTED};

const GET: &str = "/v1.PodResourcesLister/Get";
const LIST: &str = "/v1.PodResourcesLister/List";
/// How long a question may take, with its repetitions. A kubelet answers within milliseconds, except while it starts.
pub const LIMIT: Duration = Duration::from_secs(5);
/// The pauses after a refusal, in milliseconds: since 1.27 a kubelet answers 100 calls a second, and 10 at once.
const PAUSES: [u64; 4] = [50, 100, 150, 200];

/// Asks the kubelet at a socket for the devices of a pod: see [`ids`]. `Get` is on since 1.34. An older kubelet does not know it or has
/// switched it off, and then lists all pods. It also does so if it does not know the pod, because the status is the same.
///
/// # Errors
/// No answer within the limit, or an error of the kubelet.
pub fn ask(socket: &Path, namespace: &str, name: &str, limit: Duration) -> Result<Vec<u8>, Error> {
    let deadline = Instant::now() + limit;
    match repeated(socket, GET, &request(namespace, name), deadline) {
        Err(Error::Status { code, .. }) if code != RESOURCE_EXHAUSTED => {
            repeated(socket, LIST, &[], deadline)
        }
        outcome => outcome,
    }
}

/// A call, which is made again while the kubelet says that calls come too soon.
fn repeated(socket: &Path, method: &str, message: &[u8], deadline: Instant) -> Result<Vec<u8>, Error> {
    let call = || grpc::call(socket, method, message, deadline.saturating_duration_since(Instant::now()));
    for pause in PAUSES {
        match call() {
            Err(Error::Status { code: RESOURCE_EXHAUSTED, .. }) => {}
            outcome => return outcome,
        }
        // Plugins that were refused together do not come back together.
        let jitter = u64::from(process::id()) % 50;
        thread::sleep(Duration::from_millis(pause + jitter));
    }
    call()
}

/// The message `GetPodResourcesRequest`: texts with the numbers 1 and 2.
fn request(namespace: &str, name: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for (key, text) in [(0x0a, name), (0x12, namespace)] {
        message.push(key);
        let mut len = text.len();
        while len > 0x7f {
            message.push(len as u8 | 0x80);
            len >>= 7;
        }
        message.push(len as u8);
        message.extend(text.as_bytes());
    }
    message
}

/// The IDs of the devices of this resource that the pod has, from the answer to [`ask`], in which `Get` has one pod where `List` has
/// all; of all its containers, unsorted and
/// perhaps twice. `None` if several pods have the name: a static pod that ends, and its successor, which only the checkpoint
/// tells apart.
///
/// # Errors
/// The bytes are no such message.
pub fn ids<'a>(
    answer: &'a [u8],
    namespace: &str,
    name: &str,
    resource: &str,
) -> Result<Option<Vec<&'a str>>, &'static str> {
    let mut found = None;
    for pod in all(answer, 1)? {
        if text(pod, 1)? != name || text(pod, 2)? != namespace {
            continue;
        }
        let mut ids = Vec::new();
        for container in all(pod, 3)? {
            // Since about 1.22 one entry for each device and NUMA node.
            for devices in all(container, 2)? {
                if text(devices, 1)? == resource {
                    ids.extend(all(devices, 2)?.into_iter().map(utf8).collect::<Result<Vec<_>, _>>()?);
                }
            }
        }
        if found.replace(ids).is_some() {
            return Ok(None);
        }
    }
    Ok(Some(found.unwrap_or_default()))
}

/// The texts and messages of a protobuf message that have this number, in their order.
fn all(mut message: &[u8], wanted: u64) -> Result<Vec<&[u8]>, &'static str> {
    const CUT_OFF: &str = "a field that is cut off or of an unknown type";
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message).ok_or(CUT_OFF)?;
        let len = match key & 7 {
            1 => Some(8),
            2 => number(&mut message),
            5 => Some(4),
            // A number.
            0 => number(&mut message).and(Some(0)),
            _ => None,
        };
        let len = len.and_then(|len| usize::try_from(len).ok());
        let (value, rest) = len.and_then(|len| message.split_at_checked(len)).ok_or(CUT_OFF)?;
        message = rest;
        if key == wanted << 3 | 2 {
            found.push(value);
        }
    }
    Ok(found)
}

/// The text with this number; empty if the message has none.
fn text(message: &[u8], number: u64) -> Result<&str, &'static str> {
    utf8(all(message, number)?.last().copied().unwrap_or_default())
}

fn utf8(text: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(text).map_err(|_| "a text that is not UTF-8")
}

/// Takes a number of at most ten bytes.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
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
    const NIC: &str = "ferrule.dev/nic";

    #[test]
    fn devices_of_one_pod() {
        assert_eq!(ids(LIST, "shop", "web", NIC), Ok(Some(vec!["eth2", "eth1"])));
        for (namespace, name, resource) in
            [("shop", "web", "x/sfp"), ("other", "web", NIC), ("def", "db", NIC), ("shop", "db", NIC)]
        {
            assert_eq!(ids(LIST, namespace, name, resource), Ok(Some(vec![])));
        }
        let two = b"\x0a\x25\x0a\x01w\x12\x01n\x1a\x1d\x12\x1b\x0a\x0fferrule.dev/nic\x12\x02e1\x12\x04\xc3\xa4\xc3\xb6";
        assert_eq!(ids(two, "n", "w", NIC), Ok(Some(vec!["e1", "äö"])));
    }

    #[test]
    fn a_request_names_the_pod() {
        for len in [0, 3, 127, 128, 253, 20_000] {
            let name = "x".repeat(len);
            let message = request("shop", &name);
            assert_eq!((text(&message, 1), text(&message, 2)), (Ok(&name[..]), Ok("shop")));
        }
    }

    #[test]
    fn two_pods_of_one_name_are_not_told_apart() {
        assert_eq!(ids(&[LIST, LIST].concat(), "shop", "web", NIC), Ok(None));
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        for end in 1..LIST.len() {
            // 90 bytes are the first pod.
            assert_eq!(ids(&LIST[..end], "shop", "web", NIC).is_ok(), end == 90, "{end}");
        }
        assert!(ids(b"\x0a\x03\x0a\x01\xff", "", "", "").is_err());
    }

    #[test]
    fn fields_of_all_types() {
        // 1: 300; 2: "hi"; 3: fixed64; 4: fixed32; 16: a negative number has ten bytes
        let bytes = b"\x08\xac\x02\x12\x02hi\x19\0\0\0\0\0\0\0\0\x25\0\0\0\0\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!((text(bytes, 2), all(bytes, 1)), (Ok("hi"), Ok(vec![])));
        for bytes in [
            &b"\x08"[..],
            b"\x12\x05hi",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01hi",
            b"\x0b\x0c",
            b"\x25\0\0",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            assert!(all(bytes, 1).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        /// No bytes make the decoder panic. Bytes that begin a message of some level are more frequent than others.
        #[test]
        fn any_answer(bytes in vec(prop_oneof![Just(0x0a), Just(0x1a), Just(0x12), 0..12_u8, any::<u8>()], 0..60)) {
            let _ = ids(&bytes, "", "", "");
        }
    }
}
