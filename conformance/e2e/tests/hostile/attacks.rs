//! What the container does: shell scripts that run in its network namespace, with `eth0` attached. `$IP4` and `$IP6` are its
//! addresses.

use super::Subject;
use super::scene::Ending;

/// One thing that a container does.
pub(crate) struct Attack {
    /// Its name in failures.
    pub(crate) name: &'static str,
    /// The script.
    pub(crate) script: &'static str,
    /// Which interfaces it can be done to.
    needs: Needs,
}

/// What an attack needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// An interface whose other end is on the node.
    Pair,
    /// An interface with a MAC address of its own.
    OwnMac,
    /// An interface that the container may delete.
    Deletable,
    /// The namespace at DEL, and nothing that keeps it alive after that.
    Namespace,
}

/// Takes the name from the interface.
macro_rules! rename {
    () => {
        "ip link set eth0 down; ip link set eth0 name hidden0; ip link set hidden0 up; "
    };
}

impl Attack {
    /// All attacks.
    pub(crate) fn all() -> impl Iterator<Item = Attack> {
        let attack = |(name, needs, script)| Attack { name, needs, script };
        ALL.into_iter().map(attack)
    }

    /// Whether the container can do it to the interface of this subject.
    pub(crate) fn concerns(&self, subject: &Subject) -> bool {
        match self.needs {
            Needs::Nothing | Needs::Namespace => true,
            Needs::Pair => subject.is_pair,
            Needs::OwnMac => subject.plugin != "ipvlan",
            Needs::Deletable => subject.is_made,
        }
    }

    /// Whether the attack can end so. A namespace that a process keeps alive is out of reach without its path, and so is an
    /// interface in it whose other end is not on the node.
    pub(crate) fn allows(&self, ending: Ending, subject: &Subject) -> bool {
        let is_reached_late = subject.is_made && (self.needs != Needs::Namespace || subject.is_pair);
        ending == Ending::Del || is_reached_late
    }
}

const ALL: [(&str, Needs, &str); 17] = [
    ("nothing", Needs::Nothing, ""),
    ("renames its interface", Needs::Nothing, rename!()),
    (
        "a veth pair has the name",
        Needs::Nothing,
        concat!(
            rename!(),
            "ip link add eth0 type veth peer name other0; ip link set eth0 up; ip link set other0 up"
        ),
    ),
    ("a bridge has the name", Needs::Nothing, concat!(rename!(), "ip link add eth0 type bridge")),
    ("lo has the name", Needs::Nothing, concat!(rename!(), "ip link set lo down; ip link set lo name eth0")),
    (
        "a veth pair has name, alias and MAC address",
        Needs::OwnMac,
        concat!(
            "mac=$(ip -o link show eth0 | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'); ",
            "alias=$(ip -j link show eth0 | sed -n 's/.*\"ifalias\":\"\\([^\"]*\\)\".*/\\1/p'); ",
            rename!(),
            "ip link set hidden0 alias mine; ip link add eth0 address $mac type veth peer name other0; ",
            "ip link set eth0 alias \"${alias:-nic0}\" up"
        ),
    ),
    (
        "a bridge has the alias, the interface none",
        Needs::Nothing,
        "ip link set eth0 alias ''; ip link add decoy0 type bridge; ip link set decoy0 alias nic0",
    ),
    (
        "the addresses are on another link",
        Needs::Nothing,
        "ip link add other0 type bridge; ip link set other0 up; ip address flush dev eth0; ip address add $IP4/24 dev other0; \
         ip address add $IP6/64 dev other0 nodad",
    ),
    (
        "the addresses are on a link above a renamed one",
        Needs::OwnMac,
        concat!(
            rename!(),
            "ip link add eth0 link hidden0 type macvlan mode bridge; ip link set eth0 up; ip address flush dev hidden0; ",
            "ip address add $IP4/24 dev eth0; ip address add $IP6/64 dev eth0 nodad"
        ),
    ),
    (
        "the interface is a port of a bridge, has another MAC address and is down",
        Needs::OwnMac,
        "ip link add other0 type bridge; ip link set eth0 down; ip link set eth0 address 02:00:00:00:66:66; \
         ip link set eth0 master other0 mtu 1300",
    ),
    ("deletes its interface", Needs::Deletable, "ip link delete eth0"),
    (
        "another pair has the name of the deleted interface",
        Needs::Deletable,
        "ip link delete eth0; ip link add eth0 type veth peer name other0; ip address add $IP4/24 dev eth0; \
         ip address add $IP6/64 dev eth0 nodad",
    ),
    ("the interface is in another namespace", Needs::Pair, "ip link set eth0 netns nested"),
    (
        "other routes and rules",
        Needs::Nothing,
        "ip route flush table main; ip -6 route flush table main; ip rule delete pref 32766; ip rule add pref 7 lookup 100; \
         ip -6 rule add pref 7 lookup 100; ip route add default dev eth0 table 100 || true; ip link set eth0 down",
    ),
    (
        "other queueing disciplines and sysctls",
        Needs::Nothing,
        "tc qdisc replace dev eth0 root handle 1: tbf rate 1mbit burst 10kb latency 50ms; tc qdisc add dev eth0 ingress; \
         echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; echo 0 > /proc/sys/net/ipv4/conf/eth0/arp_filter",
    ),
    (
        "locks its namespace",
        Needs::Namespace,
        "flock --exclusive --no-fork /run/netns/victim sleep 300 >/dev/null 2>&1 & echo $! > /run/attacker; \
         until ! flock --exclusive --nonblock /run/netns/victim true; do sleep 0.01; done",
    ),
    (
        "a process stays in its namespace, where the interface has another name",
        Needs::Namespace,
        concat!(rename!(), "sleep 300 >/dev/null 2>&1 & echo $! > /run/attacker"),
    ),
];
