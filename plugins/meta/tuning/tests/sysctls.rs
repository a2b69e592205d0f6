//! Sysctls: order, undoing, CHECK, and the administrator's allowlist.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{TestContext, Trace, network_config, sysctl};
use cni_lab::{Place as _, Pod, go_bin_dir};
use cni_runner::Attachment;
use common::{attached, config, eth0};
use serde_json::{Value, json};

const ALL: &str = "net.ipv4.conf.all.forwarding";
const IFNAME: &str = "net.ipv4.conf.IFNAME.forwarding";

fn forwarding(pod: &Pod) -> (String, String) {
    (sysctl(pod, "ipv4/conf/all/forwarding"), sysctl(pod, "ipv4/conf/eth0/forwarding"))
}

/// A write to `all` changes all interfaces, so it comes first in any document.
#[test]
fn all_comes_before_the_interface() {
    for text in
        [format!(r#"{{"{ALL}": "1", "{IFNAME}": "0"}}"#), format!(r#"{{"{IFNAME}": "0", "{ALL}": "1"}}"#)]
    {
        let (ctx, pod) = attached();
        let conf = config("1.0.0", &json!({"sysctl": serde_json::from_str::<Value>(&text).unwrap()}));
        ctx.add(&eth0(&pod), &conf);
        assert_eq!(forwarding(&pod), ("1".to_owned(), "0".to_owned()));
        ctx.check(&eth0(&pod), &conf);
        // No link attribute, so no backup file.
        assert_eq!(ctx.node.list_dir("/run/cni/tuning").unwrap(), Vec::<String>::new());
        ctx.del(&eth0(&pod), &conf);
    }
}

/// The kernel answers EIO to a reader until the first write.
#[test]
fn a_sysctl_that_has_no_value_yet() {
    let (ctx, pod) = attached();
    let conf = config(
        "1.0.0",
        &json!({"sysctl": {"net.ipv6.conf.IFNAME.stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"}}),
    );
    ctx.add(&eth0(&pod), &conf);
    assert_eq!(sysctl(&pod, "ipv6/conf/eth0/stable_secret"), "2001:0db8:0000:0000:0000:0000:0000:0001");
    ctx.check(&eth0(&pod), &conf);
    ctx.del(&eth0(&pod), &conf);
    // Another interface with the name has none.
    let (ctx, pod) = attached();
    ctx.fail("CHECK", &eth0(&pod), &conf).expect(999, "current value is not set");
}

/// CHECK compares with the value that the kernel gave back right after the write. The reference compares with the configured text.
#[test]
fn sysctls_that_the_kernel_rewrites() {
    const FILE: &str = "/run/cni/tuning";
    for (key, value, is, other) in [
        ("net.ipv4.ip_local_reserved_ports", "8082,8081", "8081-8082", "8081"),
        ("net.core.somaxconn", "0x200", "512", "513"),
        ("net.ipv4.conf.IFNAME.arp_ignore", "02", "2", "1"),
    ] {
        for keys in [json!({}), json!({"mtu": 1400})] {
            let (ctx, pod) = attached();
            let mut keys = keys;
            keys["sysctl"] = json!({key: value});
            let conf = config("1.0.0", &keys);
            let path = key["net.".len()..].replace("IFNAME", "eth0").replace('.', "/");
            ctx.add(&eth0(&pod), &conf);
            assert_eq!(sysctl(&pod, &path), is);
            ctx.check(&eth0(&pod), &conf);
            pod.sh(&format!("echo {other} >/proc/sys/net/{path}")).unwrap();
            ctx.fail("CHECK", &eth0(&pod), &conf).expect(999, &format!("current value is {other}"));
            // The kept value is no licence for another configuration.
            keys["sysctl"] = json!({key: other});
            ctx.check(&eth0(&pod), &config("1.0.0", &keys));
            pod.sh(&format!("echo {is} >/proc/sys/net/{path}")).unwrap();
            ctx.fail("CHECK", &eth0(&pod), &config("1.0.0", &keys)).expect(999, "current value is");
            ctx.check(&eth0(&pod), &conf);
            // A second ADD keeps it, and the reference's DEL removes the file.
            ctx.add(&eth0(&pod), &conf);
            ctx.check(&eth0(&pod), &conf);
            assert_eq!(ctx.node.list_dir(FILE).unwrap().len(), 1);
            let go = TestContext { plugin: go_bin_dir().unwrap().join("tuning"), ..ctx.clone() };
            go.del(&eth0(&pod), &conf);
            assert_eq!(ctx.node.list_dir(FILE).unwrap(), Vec::<String>::new());
            ctx.del(&eth0(&pod), &conf);
        }
    }
}

/// The reference panics, also on DEL.
#[test]
fn sysctls_only_in_args() {
    let (ctx, pod) = attached();
    let conf = config("1.0.0", &json!({"args": {"cni": {"sysctl": {"net.core.somaxconn": "77"}}}}));
    ctx.add(&eth0(&pod), &conf);
    assert_eq!(sysctl(&pod, "core/somaxconn"), "77");
    ctx.check(&eth0(&pod), &conf);
    ctx.del(&eth0(&pod), &conf);
}

#[test]
fn a_refused_sysctl_undoes_the_others() {
    let (ctx, pod) = attached();
    let somaxconn = sysctl(&pod, "core/somaxconn");
    for (key, value, text) in [
        ("net.core.nope", "1", "net/core/nope"),
        ("net.ipv4.conf.IFNAME.arp_ignore", "x", "net/ipv4/conf/eth0/arp_ignore"),
        ("kernel.shmmax", "1", "invalid net sysctl key: \"kernel/shmmax\""),
    ] {
        let conf = config("1.0.0", &json!({"sysctl": {ALL: "1", "net.core.somaxconn": "77", key: value}}));
        let error = ctx.fail("ADD", &eth0(&pod), &conf);
        assert!(error.contains(text), "{error}");
        assert_eq!(sysctl(&pod, "core/somaxconn"), somaxconn, "{key}");
        assert_eq!(forwarding(&pod), ("0".to_owned(), "0".to_owned()), "{key}");
    }
}

#[test]
fn check_compares_values_by_their_parts() {
    let (ctx, pod) = attached();
    let conf = config("1.0.0", &json!({"sysctl": {"net.ipv4.tcp_rmem": "4096 131072 6291456"}}));
    ctx.add(&eth0(&pod), &conf);
    assert_eq!(sysctl(&pod, "ipv4/tcp_rmem"), "4096\t131072\t6291456");
    ctx.check(&eth0(&pod), &conf);
    pod.sh("echo 4096 131072 6291457 > /proc/sys/net/ipv4/tcp_rmem").unwrap();
    let text = "Error: Tuning configured value of /proc/sys/net/ipv4/tcp_rmem is 4096 131072 6291456, current value is 4096";
    ctx.fail("CHECK", &eth0(&pod), &conf).expect(999, text);
}

#[test]
fn the_allowlist_limits_add_and_status() {
    let (ctx, pod) = attached();
    ctx.node.sh("cp -a /etc /run/etc && mkdir -p /run/etc/cni/tuning && mount --bind /run/etc /etc").unwrap();
    let list = "^net\\.core\\.somaxconn$\n\n ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n";
    ctx.node.write_file("/etc/cni/tuning/allowlist.conf", list).unwrap();
    let conf = |keys: Value| config("1.1.0", &json!({"sysctl": keys}));
    let permitted = conf(json!({"net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_filter": "1"}));
    ctx.add(&eth0(&pod), &permitted);
    let refused = conf(json!({"net.core.somaxconn": "78", "net.ipv4.ip_forward": "1"}));
    let text = "Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: \
                [^net\\.core\\.somaxconn$ ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$]";
    ctx.fail("ADD", &eth0(&pod), &refused).expect(7, text);
    assert_eq!(sysctl(&pod, "core/somaxconn"), "77");
    ctx.fail("STATUS", &Attachment::default(), &refused).expect(50, text);
    ctx.succeed("STATUS", &Attachment::default(), &permitted);
    // CHECK and DEL do not read the list.
    ctx.fail("CHECK", &eth0(&pod), &refused).expect(999, "current value is 77");
    ctx.del(&eth0(&pod), &refused);
    // A configuration without sysctls does not read it either.
    ctx.node.write_file("/etc/cni/tuning/allowlist.conf", "[").unwrap();
    ctx.add(&eth0(&pod), &config("1.1.0", &json!({"mtu": 1400})));
}

#[test]
fn status_refuses_an_invalid_configuration() {
    let (ctx, _pod) = attached();
    let conf = network_config("tuning", "1.1.0", &json!({"mac": "zz"}));
    ctx.fail("STATUS", &Attachment::default(), &conf).expect(50, "invalid args zz for MAC addr");
}

/// The number of netlink requests, and of files that are read or written.
#[test]
fn cost() {
    let (ctx, pod) = attached();
    for (keys, sends, enters) in [
        (json!({}), 0, 0),
        (json!({"sysctl": {"net.core.somaxconn": "77"}}), 0, 2),
        (json!({"txQLen": 5}), 2, 2),
        (json!({"mtu": 1400}), 4, 2),
    ] {
        let exec = ctx.exec("ADD", &eth0(&pod), &config("1.0.0", &keys));
        let trace = Trace::of(&ctx.node, &exec, "execve,sendto,sendmsg,setns");
        assert_eq!(trace.programs(), 0);
        assert_eq!((trace.count(&["sendto", "sendmsg"]), trace.count(&["setns"])), (sends, enters), "{keys}");
    }
}
