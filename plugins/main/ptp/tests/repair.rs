//! Repair of both ends of the pair, the node's routes and masquerading after another program has damaged them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use cni_lab::testing::iptables::variant;
use cni_lab::testing::{Expect as _, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{assert_nothing_left, config, host_end, ours, repairing, snapshot};
use serde_json::json;

#[test]
fn what_check_refuses_is_made_again() {
    for backend in ["nftables", "nft", "legacy"] {
        let programs = variant(if backend == "nftables" { "nft" } else { backend });
        let ctx = ours().with_programs(programs.path());
        let repair = repairing(&ctx);
        let clients = [("192.0.2.0/24", "-4"), ("2001:db8::/64", "-6")].map(|(subnet, family)| {
            let client = ctx.node.outside_client(subnet).unwrap();
            client.sh(&format!("ip {family} route del default")).unwrap();
            client
        });
        // Forwarding gives links more IPv6 addresses.
        ctx.node.sh("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding").unwrap();
        let before = snapshot(&ctx);
        let masquerade = if backend == "nftables" { "nftables" } else { "iptables" };
        let conf = config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": masquerade}));
        let pods = ["hurt", "other"].map(|name| ctx.pod(name));
        let results = pods.each_ref().map(|pod| ctx.add(&pod.attachment("eth0"), &conf));
        let calls = [0, 1].map(|at| (pods[at].attachment("eth0"), with_prev(&conf, &results[at])));
        let is_refused = |at: usize| {
            let output = ctx.call("CHECK", &calls[at].0, &calls[at].1);
            if output.success() { None } else { Some(output.error().msg) }
        };
        let server: SocketAddr = "10.1.2.1:7000".parse().unwrap();
        let listener = ctx.node.run(|| TcpListener::bind(server)).unwrap().unwrap();
        let mut near = pods[1].run(|| TcpStream::connect_timeout(&server, TIMEOUT)).unwrap().unwrap();
        let mut far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(TIMEOUT)).unwrap();

        let table: &[(&str, &str, bool)] = match backend {
            "nftables" => &[
                ("ip link set END down", "is down", true),
                ("ip address del 10.1.2.1/32 dev END", "does not have address 10.1.2.1/32", true),
                ("ip -6 address flush dev END scope global", "does not have address fd00:1::1/128", false),
                ("ip -6 address flush dev END scope link", "has no link-local address", false),
                ("ip route del 10.1.2.2 dev END", "the host's route to 10.1.2.2", true),
                ("ip -6 route del fd00:1::2 dev END", "the host's route to fd00:1::2", true),
                ("ip link set END address 02:00:00:00:00:98", "MAC address", false),
                ("echo 0 > /proc/sys/net/ipv4/ip_forward", "ip_forward", true),
                ("nft flush ruleset", "not masqueraded", true),
                ("nft flush chain inet cni_plugins_masquerade masq_checks", "not masqueraded", true),
                ("pod:ip link set eth0 down", "is down", true),
                ("pod:ip route flush all; ip -6 route flush all", "not found in the container", true),
                ("pod:ip address flush dev eth0 scope global", "does not have address 10.1.2.2/24", true),
            ],
            "nft" => &[
                ("iptables-nft -t nat -F; ip6tables-nft -t nat -F", "not masqueraded", true),
                ("nft flush ruleset", "not masqueraded", true),
            ],
            _ => &[("iptables-legacy -t nat -F; ip6tables-legacy -t nat -F", "not masqueraded", true)],
        };
        let reaches = |wait: f64| {
            let script =
                clients.each_ref().map(|to| format!("ping -c 1 -W {wait} {}", to.address())).join(" && ");
            pods[0].sh(&script).is_ok()
        };
        assert!(eventually(TIMEOUT, || reaches(1.0)), "{backend}");
        for &(script, text, is_cut) in table {
            println!("{script}");
            match script.strip_prefix("pod:") {
                Some(inside) => pods[0].sh(inside).unwrap(),
                None => ctx.node.sh(&script.replace("END", host_end(&results[0]))).unwrap(),
            };
            let why = is_refused(0).expect(script);
            assert!(why.contains(text), "{script}: {why}");
            assert!(!is_cut || !reaches(0.3), "{script}");
            for (at, (attachment, conf)) in calls.iter().enumerate() {
                if is_refused(at).is_some() {
                    repair.add(attachment, conf);
                    assert_eq!(is_refused(at), None, "{script}");
                }
            }
            assert!(eventually(TIMEOUT, || reaches(1.0)), "{script}");
            near.write_all(b"!").unwrap();
            far.read_exact(&mut [0])
                .unwrap_or_else(|error| panic!("{script}: the connection ended: {error}"));
        }

        // A repair of sound attachments changes nothing.
        let handles = || ctx.node.sh("nft -a -s list ruleset").unwrap();
        let (sound, rules) = (ctx.snapshot(), handles());
        for (attachment, conf) in &calls {
            repair.add(attachment, conf);
        }
        assert_eq!((sound.diff(&ctx.snapshot()), rules), (String::new(), handles()));
        pods[0].sh("ip link del eth0").unwrap();
        let text = "the container has no interface \"eth0\", start the container again";
        repair.fail("ADD", &calls[0].0, &calls[0].1).expect(999, text);
        for (attachment, conf) in &calls {
            ctx.del(attachment, conf);
        }
        assert_nothing_left(&ctx, &before, backend);
    }
}
