//! The pod in the comment of an element: `UID NAMESPACE/NAME`, in at most 128 bytes, the most that `nft` prints.
//!
//! A part that is too long or has other characters than a name of Kubernetes is replaced by `~` and a hash, or ends with them. No name has a
//! `~`, so such a comment names the same pod only as a whole.

use ferrule_kernel::nftables::COMMENT_MAX;
use ferrule_kit::hash::sha512_hex;
use ferrule_kubelet::Pod;

/// Stands for a UID that the runtime has not passed.
const NO_UID: &str = "-";
/// A UID of Kubernetes has 36 characters, that of a static pod 32.
const UID_MAX: usize = 40;
/// The most characters of a namespace.
pub(crate) const NAMESPACE_MAX: usize = 63;
/// The digits of a hash, behind a `~`.
const DIGITS: usize = 16;

/// The comment that names the pod.
pub fn encode(pod: &Pod<'_>) -> String {
    let uid = if pod.uid.is_empty() { NO_UID.to_owned() } else { part(pod.uid, UID_MAX) };
    let namespace = part(pod.namespace, NAMESPACE_MAX);
    let name = part(pod.name, COMMENT_MAX - uid.len() - namespace.len() - 2);
    format!("{uid} {namespace}/{name}")
}

/// The parts of a comment. A part with a `~` is not the pod's own: only [`encode`] of the pod can tell whether the comment names it.
/// `None` for any other comment.
pub fn decode(comment: &str) -> Option<Pod<'_>> {
    let (uid, pod) = comment.split_once(' ')?;
    let (namespace, name) = pod.split_once('/')?;
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte == b'~' || is_usual(byte));
    [uid, namespace, name].into_iter().all(is_part).then_some(Pod {
        namespace,
        name,
        uid: if uid == NO_UID { "" } else { uid },
    })
}

fn is_usual(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:".contains(&byte)
}

/// The text, if it is a usual name of at most `room` bytes; else what fits of its usual start, and a hash of the whole.
fn part(text: &str, room: usize) -> String {
    let usual = text.bytes().take_while(|byte| is_usual(*byte)).count();
    if !text.is_empty() && usual == text.len() && usual <= room {
        return text.to_owned();
    }
    let start = usual.min(room.saturating_sub(DIGITS + 1));
    format!("{}~{}", text.get(..start).unwrap_or_default(), sha512_hex(text, DIGITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d3c7e6a-2b1f-4c55-9b0e-7a1d2f3c4b5a";

    fn pod<'a>(uid: &'a str, namespace: &'a str, name: &'a str) -> Pod<'a> {
        Pod { namespace, name, uid }
    }

    #[test]
    fn a_comment_names_the_pod() {
        let web = pod(UID, "shop", "web-0.a");
        assert_eq!(encode(&web), format!("{UID} shop/web-0.a"));
        assert_eq!(decode(&encode(&web)), Some(web));
        let nameless = pod("", "shop", "web");
        assert_eq!(encode(&nameless), "- shop/web");
        assert_eq!(decode("- shop/web"), Some(nameless));
        for foreign in
            ["", "web", "uid shop", "uid /web", "uid shop/", "uid shop/we\"b", "u shop/a/b", "a b c/d"]
        {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn long_and_strange_names_are_cut_and_stay_apart() {
        let (namespace, name) = ("n".repeat(63), "x".repeat(253));
        let other = name.clone() + "y";
        let long = encode(&pod(UID, &namespace, &name));
        assert_eq!(long.len(), COMMENT_MAX);
        assert_ne!(long, encode(&pod(UID, &namespace, &other)));
        let read = decode(&long).unwrap();
        assert_eq!((read.uid, read.namespace), (UID, namespace.as_str()));
        assert!(read.name.starts_with("xxxx") && read.name.contains('~'), "{long}");
        let quoted = encode(&pod("a\"b", "sh op", "w\u{e9}b/\n"));
        assert!(quoted.is_ascii() && quoted.len() <= COMMENT_MAX && decode(&quoted).is_some(), "{quoted}");
        let huge = "u".repeat(4000);
        assert!(encode(&pod(&huge, &huge, &huge)).len() <= COMMENT_MAX);
        assert!(encode(&pod(&huge, "", "")).len() <= COMMENT_MAX);
    }
}
