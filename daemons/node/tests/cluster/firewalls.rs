//! Firewalls of the node: opened, or named with a command that lets the pods pass.

use std::thread::sleep;
use std::time::Duration;

use cni_lab::Place as _;
use cni_lab::testing::Firewalld;
use serde_json::Value;

use crate::lab::{Cluster, node_object, node_path, wait};
use crate::member::{Member, Running};

impl Member {
    /// Waits until the daemon names the firewall and these podCIDRs, and returns the command.
    fn names(&self, firewall: &str, networks: &[String]) -> String {
        let reasons = || -> Vec<String> {
            let status: Value =
                serde_json::from_str(&self.sh("cat /run/ferrule/node/status.json")).unwrap_or_default();
            let reasons = status["reasons"].as_array().cloned().unwrap_or_default();
            reasons.iter().filter_map(|reason| reason["text"].as_str().map(str::to_owned)).collect()
        };
        let is_it =
            |text: &String| text.contains(firewall) && networks.iter().all(|network| text.contains(network));
        let found = wait(firewall, reasons, |texts| texts.iter().any(is_it));
        let text = found.into_iter().find(is_it).unwrap();
        let command = text.split_once("; ").unwrap().1.split_once(" lets them pass").unwrap().0;
        command.to_owned()
    }
}

/// No packet of a new connection passes.
fn is_cut(one: &Running<'_>, two: &Running<'_>) {
    one.pod.sh(&format!("! ping -c 1 -W 1 {}", two.addresses[0])).unwrap();
}

/// A table of the administrator, ufw that rejects, and firewalld: what the reason's text says is typed.
#[test]
fn foreign_firewalls() {
    let cluster = Cluster::started("");
    let Cluster { a, b, .. } = &cluster;
    let (one, two) = (a.pod("one"), b.pod("two"));
    one.reaches(&two);
    let ufw = "for program in iptables ip6tables; do
            prefix=ufw; test $program = iptables || prefix=ufw6
            for chain in before reject user; do $program-nft -N $prefix-$chain-forward; done
            $program-nft -A $prefix-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            $program-nft -A $prefix-before-forward -j $prefix-user-forward; $program-nft -A $prefix-reject-forward -j REJECT
            $program-nft -A FORWARD -j $prefix-before-forward; $program-nft -A FORWARD -j $prefix-reject-forward
        done";
    // What `ufw route allow` adds.
    let allow = "ufw() {
            program=iptables; prefix=ufw; case $4 in *:*) program=ip6tables; prefix=ufw6 ;; esac
            case $3 in from) end=-s ;; to) end=-d ;; esac
            $program-nft -A $prefix-user-forward $end $4 -j ACCEPT
        }";
    for (firewall, make, before, end) in [
        (
            "the chain pass of table inet own drops",
            "nft 'table inet own { chain pass { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname lo accept; }; }'",
            "",
            "nft delete table inet own",
        ),
        ("ufw drops", ufw, allow, "iptables-nft -F; ip6tables-nft -F"),
    ] {
        a.sh(make);
        is_cut(&two, &one);
        let command = a.names(firewall, &a.pod_cidrs());
        a.sh(&format!("{before}\n{command}"));
        wait("not named", || a.http("/readyz").1, |answer| !answer.contains(firewall));
        one.reaches(&two);
        two.reaches(&one);
        a.sh(end);
    }

    a.sh("mount -t tmpfs none /etc/firewalld");
    let firewalld = Firewalld::start(&a.node);
    is_cut(&two, &one);
    let command = a.names("firewalld drops", &a.pod_cidrs());
    a.sh(&command);
    wait("not named", || a.http("/readyz").1, |answer| !answer.contains("firewalld"));
    one.reaches(&two);
    two.reaches(&one);
    drop(firewalld);
    a.sh("nft delete table inet firewalld");
}

/// iptables-legacy sends no messages: the daemon looks at it when it works, at least once a minute.
#[test]
fn legacy_rules_that_come_later() {
    let cluster = Cluster::started("");
    let Cluster { a, b, .. } = &cluster;
    let (one, two) = (a.pod("one"), b.pod("two"));
    one.reaches(&two);
    a.sh("iptables-legacy -A FORWARD -j REJECT; iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD DROP");
    is_cut(&two, &one);
    // The daemon's last look is older than ten seconds, and a change of the cluster makes it work.
    sleep(Duration::from_secs(11));
    cluster.store.put(&node_path("d"), node_object(&["192.0.2.9"], &["10.244.9.0/24"]));
    wait("the chain", || a.sh("ip6tables-legacy -S FORWARD"), |rules| rules.contains("-j FERRULE-NODE"));
    let command = a.names("a rule in FORWARD of iptables-legacy drops", &a.pod_cidrs()[..1]);
    a.sh(&command);
    one.reaches(&two);
    two.reaches(&one);
    a.sh("iptables-legacy -F; iptables-legacy -P FORWARD ACCEPT; ip6tables-legacy -F; ip6tables-legacy -P FORWARD ACCEPT");
}
