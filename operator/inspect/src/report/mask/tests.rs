use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::json;

use super::names::Class;
use super::*;

fn mask(is_open: bool) -> Mask {
    let mut names = Names::default();
    names.learn_pod("shop/web-0");
    names.learn_node("n1.corp.example");
    for (class, name) in [
        (Class::Network, "lan"),
        (Class::Network, "bridge"),
        (Class::Container, &"0123456789abcdef".repeat(4)),
        (Class::Container, "evil\u{1b}[31m\"name\nx"),
        (Class::Container, "42"),
        (Class::Namespace, "web-0"),
    ] {
        names.learn(class, name);
    }
    Mask::new(names, HashSet::from(["f".repeat(64)]), is_open)
}

#[test]
fn no_name_stays_and_equal_names_have_equal_masks() {
    let mask = mask(false);
    let long = "0123456789abcdef".repeat(4);
    let text = format!(
        "pod shop/web-0 on lan ({long}, 0123456789ab) of n1 n1.corp.example, /results/lan-{long}-eth0 evil [31m\"name x 42"
    );
    let masked = mask.text(&text);
    for name in ["shop", "web-0", "lan", "0123456789ab", "n1", "corp", "evil"] {
        assert!(!masked.contains(name), "{name}: {masked}");
    }
    let container = mask.text(&long);
    assert!(container.starts_with("container-") && masked.matches(&container).count() == 3, "{masked}");
    assert_eq!(mask.text("x lan y"), mask.text("x lan y"));
    // A pod has the name of a namespace.
    assert_eq!(masked.matches("namespace-").count(), 2, "{masked}");
    assert!(masked.contains("-eth0") && masked.ends_with(" 42"), "{masked}");
    for word in ["bridge", "landscape", "plan", "island", "web-01", &"f".repeat(64)] {
        assert_eq!(mask.text(word), word);
    }
    assert_ne!(self::mask(false).text("lan"), mask.text("lan"), "two reports have the same key");
    assert_eq!(self::mask(true).text(&text), text);
}

#[test]
fn a_document_teaches_names_by_its_members() {
    let document = json!({"attachments": [{"container": "c-9", "network": "blue", "pod": "ns9/p9", "host": "h9"}],
        "nodes": [{"name": "n9.x", "networks": [{"network": "10.9.0.0/16"}]}], "name": "type"});
    let mut names = Names::default();
    names.learn_from(&document);
    let mask = Mask::new(names, HashSet::new(), false);
    let masked = mask.json(&document).to_string();
    for name in ["c-9", "blue", "ns9", "p9", "h9", "n9", "10.9."] {
        assert!(!masked.contains(name), "{name}: {masked}");
    }
    assert!(masked.contains(r#""name":"type""#), "{masked}");
}

#[test]
fn addresses_keep_their_relations() {
    let mask = mask(false);
    let v4 = |text: &str| mask.text(text).parse::<Ipv4Addr>().unwrap();
    let common = |one: Ipv4Addr, other: Ipv4Addr| (one.to_bits() ^ other.to_bits()).leading_zeros();
    for (one, other, bits) in [
        ("10.1.0.2", "10.1.0.3", 31),
        ("10.1.0.2", "10.1.128.2", 16),
        ("10.1.0.2", "10.200.0.2", 8),
        ("8.8.8.8", "9.9.9.9", 7),
    ] {
        assert_eq!(common(v4(one), v4(other)), bits, "{one} {other}");
    }
    for inside in ["10.9.8.7", "192.168.3.4", "172.20.1.1", "100.70.1.2"] {
        let masked = mask.text(inside);
        assert_eq!(masked.split('.').next(), inside.split('.').next());
        assert_ne!(masked, inside);
    }
    // No other address comes into a prefix that stays.
    for address in (0..=255).map(|first| Ipv4Addr::new(first, 7, 7, 7)) {
        let is_private =
            |address: Ipv4Addr| (address.is_private(), address.is_loopback(), address.octets()[0] >= 224);
        assert_eq!(is_private(v4(&address.to_string())), is_private(address), "{address}");
    }
    let v6 = |text: &str| mask.text(text).parse::<Ipv6Addr>().unwrap();
    assert_eq!((v6("fd00:1::2").to_bits() ^ v6("fd00:1::3").to_bits()).leading_zeros(), 127);
    assert!(
        mask.text("fe80::42:acff:fe11:2").starts_with("fe80::")
            && mask.text("2001:db8::5").starts_with("2001:db8:")
    );
    assert_eq!(v6("::ffff:10.1.0.2").to_ipv4_mapped(), Some(v4("10.1.0.2")));
    let subnet = mask.text("10.1.0.0/16");
    assert!(subnet.ends_with(".0.0/16"), "{subnet}");
    let of = |subnet: &str| subnet.split('.').take(2).collect::<Vec<_>>().join(".");
    assert_eq!(of(&subnet), of(&v4("10.1.0.2").to_string()));
    for known in [
        "127.0.0.1",
        "0.0.0.0/0",
        "169.254.1.1",
        "224.0.0.5",
        "255.255.255.255",
        "255.255.0.0",
        "::",
        "::/0",
        "::1",
        "ff02::2",
        "1.2.3",
        "09:55:00",
        "std::fs",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "2026-11-28",
        "fe80::/64",
        "fd00::/8",
    ] {
        assert_eq!(mask.text(known), known);
    }
    assert_ne!(mask.text("ff02::1:ff11:2233"), "ff02::1:ff11:2233");
}

#[test]
fn addresses_are_found_wherever_they_stand() {
    let mask = mask(false);
    let text = "dst=10.77.88.99:80 [fd77:88::99]:80 via 10.77.88.99, 10.77.88.99-10.77.88.99 ip-10-77-88-99 x10.77.88.99y \
        fd77:88::99. a6:77:88:99:aa:bb (a6:77:88:99:aa:bb) fd77:88::99/64 10.77.88.99.80 http://10.77.88.99:1/ 10.77.88.99%eth0";
    let masked = mask.text(text);
    for address in ["77.88", "77-88", "77:88"] {
        assert!(!masked.contains(address), "{address}: {masked}");
    }
    let one = mask.text("10.77.88.99");
    assert_eq!(masked.matches(&one).count(), 8, "{masked}");
    let mac = mask.text("a6:77:88:99:aa:bb");
    assert!(mac.len() == 17 && masked.matches(&mac).count() == 2, "{masked}");
    let first = u8::from_str_radix(&mac[..2], 16).unwrap();
    assert_eq!(first & 3, 2, "it is local, and no group");
    assert_eq!(self::mask(true).text(text), text);
}

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

#[test]
fn secrets_are_removed_whether_names_are_masked_or_not() {
    let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl";
    for (text, secret) in [
        (format!("peer {KEY} allowed"), KEY),
        (format!("Authorization: Bearer {jwt}"), jwt),
        (format!("x {jwt}, y"), jwt),
        ("--password hunter22 --x".to_owned(), "hunter22"),
        ("DB_PASSWORD=hunter22;".to_owned(), "hunter22"),
        (r#"{\"token\": \"hunter22\"}"#.to_owned(), "hunter22"),
        ("Authorization: Basic aHVudGVyMjI".to_owned(), "aHVudGVyMjI"),
        ("https://admin:hunter22@api.example:6443/x".to_owned(), "hunter22"),
        ("join abcdef.0123456789abcdef now".to_owned(), "0123456789abcdef"),
        ("-----BEGIN KEY-----\nhunter22\n-----END KEY----- y".to_owned(), "hunter22"),
        ("id AbCdEfGhIjKlMnOpQrStUvWxYz0123456789 y".to_owned(), "AbCdEfGh"),
    ] {
        for is_open in [false, true] {
            let masked = mask(is_open).text(&text);
            assert!(!masked.contains(secret) && masked.contains("(removed)"), "{text}: {masked}");
        }
    }
    let document = json!({"privateKey": "a", "annotations": {"x": "b"}, "env": ["c"], "x": {"kubeconfig": "d", "name": "e"}});
    assert_eq!(
        mask(true).json(&document),
        json!({"privateKey": "(removed)", "annotations": "(removed)",
        "env": "(removed)", "x": {"kubeconfig": "(removed)", "name": "e"}})
    );
    for prose in [
        "the token is missing",
        "secret files",
        "/run/netns/cni-1234",
        "basic rules",
        "KUBE-SVC-NPX46M4PTMTKRN6Y",
    ] {
        assert_eq!(mask(false).text(prose), prose);
    }
}

#[test]
fn hosts_of_urls_and_ids_are_masked() {
    let mask = mask(false);
    let masked = mask.text(
        "https://api.corp.example:6443/x http://localhost:1/ pod 0b1c2d3e-1111-2222-3333-444455556666 a",
    );
    assert!(!masked.contains("corp") && masked.contains(":6443/x http://localhost:1/"), "{masked}");
    assert!(masked.contains("pod id-") && masked.ends_with(" a") && !masked.contains("1111"), "{masked}");
}

#[test]
fn comments_and_names_of_chains_are_masked() {
    let mask = mask(false);
    let text = "\
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"billing/api:https cluster IP\" -j KUBE-SVC-X
\tcomment \"lan billing\" counter packets 0
\tip daddr . tcp dport { 10.96.0.1 . 443 : goto service-AB12-billing/api/tcp/https }
\tmeta mark & 0x00004000/0x00004000 limit rate 5/minute
";
    let masked = mask.rules(text);
    for name in ["billing", "api", "lan", "10.96.0.1"] {
        assert!(!masked.contains(name), "{name}: {masked}");
    }
    for kept in [
        "cluster IP\" -j KUBE-SVC-X",
        "/tcp/",
        "0x00004000/0x00004000 limit rate 5/minute",
        "counter packets 0",
    ] {
        assert!(masked.contains(kept), "{kept}: {masked}");
    }
    let network = mask.text("lan");
    assert!(masked.contains(&network), "{masked}");
    assert_eq!(self::mask(true).rules(text), text);
}

/// What stands around a text of these is anything.
#[test]
fn no_character_in_any_place_ends_the_report() {
    let texts = [
        "join abcdef.0123456789abcdef now",
        "10.77.88.99/24",
        "fd77:88::99/64",
        "a6:77:88:99:aa:bb",
        "10-77-88-99",
        KEY,
        "0b1c2d3e-1111-2222-3333-444455556666",
        "https://u:p@api.example:6443/x",
        "Authorization: Bearer hunter22hunter22",
        "-----BEGIN KEY-----\nhunter22\n-----END KEY-----",
        "comment \"a/b c\" x/y/z",
        "shop/web-0 lan n1.corp.example",
    ];
    let mask = mask(false);
    for text in texts {
        for at in 0..=text.len() {
            for inserted in ["→", "é", "\u{10ffff}", "\"", "\\", ":", "."] {
                let changed = format!("{}{inserted}{}", &text[..at], &text[at..]);
                mask.rules(&changed);
                mask.text(&changed[..at + inserted.len()]);
            }
        }
    }
}
