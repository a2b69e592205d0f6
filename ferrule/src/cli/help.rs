//! The texts of `--help`.

const ALL: &str = "\
Usage: ferrule COMMAND [OPTIONS]

Installs the Ferrule CNI plugins where container runtimes look for them. It is safe on
a running node: a runtime always finds the complete old program or the complete new
one.

Commands
  install     install this program under the name of every plugin
  rollback    restore the files that the last installation replaced
  uninstall   restore the files from before the first installation
  status      what is installed
  inspect     whose every address, host port, rule and link of the node is
  gc          remove what containers that no longer exist have left
  check       check the network of every running container
  doctor      what this node lacks for its networks, with the remedies
  log         the last, slowest and failed calls of the plugins, if they are logged
  metrics     count these calls for Prometheus
  plugins     list the plugins in this program, with their CNI versions
  version     print the version and the SHA-256 of this program

ferrule COMMAND --help prints the options of a command.

Under the name of a plugin, or with CNI_COMMAND set, this program is a CNI plugin.
";

const INSTALL: &str = "\
Usage: ferrule install [OPTIONS]

Installs this program under the name of every plugin, and as `ferrule`, as links of one
file. First runs every new plugin with the command VERSION. If a step fails, restores
the files that it has already replaced.

  --bin-dir DIR       the folder to install into (default: /opt/cni/bin)
  --plugins \"NAME ..\" only these plugins (default: all). `ferrule` comes along
  --from DIR          install the programs in DIR instead of this one
  --dry-run           check everything, print the steps, change nothing
  --wait SECONDS      how long to wait for another installation that works on the same
                      folder (default: 30)

BIN_DIR/.ferrule has the replaced files, and a manifest in plain text. If an
installation was interrupted, run the command again: it first restores the files that
the interrupted one replaced.

Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage.
";

const BACK: &str = "
  --bin-dir DIR       the folder of the plugins (default: /opt/cni/bin)
  --plugins \"NAME ..\" only these plugins (default: all)
  --force             also restore files that have changed since the installation;
                      without it they stay, and the exit status is 3
  --host-ports TO     where the host ports of running pods go when portmap is replaced:
                      to the backend iptables or nftables of the reference plugin, or
                      nowhere with keep (default: iptables if the node has it, else
                      nftables, as the reference plugin chooses; if your configuration
                      says nftables, use --host-ports nftables)
  --conf-dir DIR      the network configurations, which name the folders of host-local
                      (default: /etc/cni/net.d)
  --data-dir DIR      one more folder of host-local (dataDir in its configuration); may
                      be repeated
  --dry-run           check everything, print the steps, change nothing
  --wait SECONDS      how long to wait for another installation that works on the same
                      folder (default: 30)

Host ports move before any file changes, and again afterwards, for pods that started
in the meantime. They work all the time, even if a step fails: each portmap removes
the host ports that it received, and Ferrule's also removes the reference's.

When another program becomes host-local, the index of Ferrule's host-local is removed
from its folders. Reservations stay.

Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage;
3 done, except for files that have changed since the installation, or for host ports
that had to stay in Ferrule's table.
";

const ROLLBACK: &str = "\
Usage: ferrule rollback [OPTIONS]

Restores the files that the last installation replaced; these may be an earlier
Ferrule.
";

const UNINSTALL: &str = "\
Usage: ferrule uninstall [OPTIONS]

Restores the files from before the first installation, removes files that did not exist
then, and deletes the records.
";

const STATUS: &str = "\
Usage: ferrule status [--bin-dir DIR] [--json]

Prints one line for each plugin:
  STATE     installed       the file is ours
            changed         another process has replaced or changed our file
            missing         our file was removed
            not executable  our file, without permission to execute it
            foreign         a file of another program; Ferrule has not installed this
            absent          no file; Ferrule has not installed this
  VERSION   what Ferrule has installed
  BEFORE    what uninstall restores: a file, a link, or none
  ROLLBACK  what rollback restores: a version of Ferrule, a file, a link, or none

  --bin-dir DIR       the folder of the plugins (default: /opt/cni/bin)
  --json              print one JSON document

Exit status: 0 all installed files are ours; 1 failed; 2 wrong usage; 3 a file has
changed or is missing, or an installation was interrupted; 4 Ferrule is not installed.
";

pub(super) const INSPECT: &str = "\
Usage: ferrule inspect [VIEW] [OPTIONS]

Shows what the CNI plugins have made on this node, Ferrule's and the reference's, and
for whom.

Views
  pods        one line for each attachment of a container to a network (default)
  addresses   the addresses that host-local has reserved or dhcp has leased
  ports       the host ports, in every layout
  shaping     the limits of bandwidth, with bytes passed and packets dropped
  links       the host's ends of the containers' links, IFBs, devices of host-device,
              VLAN devices with their users, and links without an end on the host
  devices     the devices that containers have by host-device, with the resource
              that the kubelet has given them from
  leaks       what belongs to no living container, each with its proof
  why WHAT    everything about a container, pod, address or host port

  --all             pods: also the attachments of lo, which containerd makes
  --json            print one JSON document
  --watch[=SECONDS] print again and again (default: every 2 seconds)
  --cache-dir DIR   the runtime's cache of results (default: /var/lib/cni)
  --data-dir DIR    one more folder of host-local; may be repeated
  --root DIR        work with DIR as the root folder: in a container, the node's
  --init PID        the first process of a node that is a container itself (default: 1)

IN/OUT are the limits in bit/s, to and from the container. STATE is alive, dead, or
unknown if there is neither a sign of life nor a proof of death. Tables fit the terminal;
NO_COLOR switches colours off.

Exit status: 0 done; 1 failed, or something could not be read; 2 wrong usage; 3 why
found nothing.
";

pub(super) const GC: &str = "\
Usage: ferrule gc --dry-run | --yes [OPTIONS]

Removes exactly what `ferrule inspect leaks` lists: each object by its plugin's own
code and under its lock. Before each removal it looks again whether the container is
dead. If something cannot be read, or if this process does not see the node as the
node's first process does, it removes nothing.

  --dry-run         print what it would remove
  --yes             remove it
  --cache-dir DIR, --data-dir DIR, --root DIR, --init PID   as for ferrule inspect

Exit status: 0 done, or nothing to do; 1 failed, or something could not be read; 2 wrong
usage.
";

pub(super) const CHECK: &str = "\
Usage: ferrule check [OPTIONS]

Calls the plugins with the command CHECK for every attachment in the runtime's cache
whose network namespace exists, one for each CPU at once, and prints what they find.

  --bin-dir DIR     the folder of the plugins (default: /opt/cni/bin); may be repeated
  --all             also the attachments of lo, which containerd makes
  --timeout SECONDS how long a plugin may take; it is then stopped (default: 30)
  --cache-dir DIR   the runtime's cache of results (default: /var/lib/cni)
  --root DIR        work with DIR as the root folder: in a container, the node's
  --init PID        the first process of a node that is a container itself (default: 1)
  --json            print one JSON document

Exit status: 0 all attachments are sound, or not to be checked; 1 a check failed, or a
cached result or the namespaces of the node could not be read; 2 wrong usage.
";

pub(super) const DOCTOR: &str = "\
Usage: ferrule doctor [OPTIONS]

Looks for what keeps pods from starting, or loses their traffic, and prints the remedy
for each finding: networks that no installed plugin can serve, plugins of mixed
versions, missing kernel modules, tools and daemons, wrong file modes, overlapping
subnets, firewalls that drop packets of pods, sysctls. It asks each plugin by VERSION
and STATUS, and changes nothing. What is in order gets a line with \"ok\".

  --conf-dir DIR    the network configurations (default: /etc/cni/net.d)
  --bin-dir DIR     the folder of the plugins (default: /opt/cni/bin); may be repeated
  --timeout SECONDS how long a plugin may take; it is then stopped (default: 30)
  --root DIR, --init PID   as for ferrule check
  --json            print one JSON document

Exit status: 0 no errors; 1 there are errors, or the node could not be examined; 2 wrong
usage.
";

pub(super) const LOG: &str = "\
Usage: ferrule log [OPTIONS]

Prints the calls in the log and in its old file: by default the last 20.

  --last N          at most N calls
  --slowest N       the N slowest calls instead, the slowest first
  --failed          only calls that failed
  --container WHO   only calls for one container: the beginning of its ID, or its pod as
                    NAMESPACE/NAME or NAME
  --json            print their lines, with all steps and netlink errors
  --file FILE       the log (default: the configured one); /dev/stdin for lines from
                    journald or syslog

The log is off by default. To switch it on, write one of these lines to
/etc/cni/ferrule.conf, or the value to CNI_FERRULE_LOG in the runtime's environment:

  log = file [SIZE]     /var/log/ferrule.log; at SIZE it becomes ferrule.log.1
  log = /PATH [SIZE]    another file (SIZE: number of bytes, or with k, M, G; default: 10M)
  log = journald
  log = syslog

Exit status: 0 done; 1 failed, or there is no log; 2 wrong usage.
";

pub(super) const METRICS: &str = "\
Usage: ferrule metrics [OPTIONS]

Counts the calls in the log by plugin, verb and outcome, with a histogram of how long
they took, as text for Prometheus. Without --output it prints them.

  --output FILE     write them to FILE, which replaces an earlier one by a rename: for
                    the folder of node_exporter's textfile collector. Calls that FILE
                    has counted stay counted when the log is rotated
  --file FILE       the log (default: the configured one)

Exit status: 0 done; 1 failed; 2 wrong usage.
";

const PLUGINS: &str = "\
Usage: ferrule plugins

Prints one line for each plugin in this program: its name and its CNI versions.
";

const VERSION: &str = "\
Usage: ferrule version

Prints the version of this program, and its SHA-256, as in BIN_DIR/.ferrule/manifest.
";

/// The commands, and the parts of the help on each.
const TOPICS: [(&str, &[&str]); 12] = [
    ("install", &[INSTALL]),
    ("rollback", &[ROLLBACK, BACK]),
    ("uninstall", &[UNINSTALL, BACK]),
    ("status", &[STATUS]),
    ("inspect", &[INSPECT]),
    ("gc", &[GC]),
    ("check", &[CHECK]),
    ("doctor", &[DOCTOR]),
    ("log", &[LOG]),
    ("metrics", &[METRICS]),
    ("plugins", &[PLUGINS]),
    ("version", &[VERSION]),
];

/// The command with this name that there is help on.
pub(super) fn topic(name: &str) -> Option<&'static str> {
    TOPICS.iter().map(|(topic, _)| *topic).find(|topic| *topic == name)
}

/// Help on a command, or on all.
pub(super) fn text(topic: Option<&str>) -> String {
    let parts = topic.and_then(|name| TOPICS.iter().find(|(topic, _)| *topic == name));
    parts.map_or(ALL.to_owned(), |(_, parts)| parts.concat())
}
