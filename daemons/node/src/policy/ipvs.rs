//! kube-proxy's mode `ipvs`.

use std::fs;
use std::net::IpAddr;

use ferrule_kernel::ip::from_octets;

/// Its packets do not pass the hook `forward`.
pub(super) const REASON: &str = "IPVS has services on this node whose servers are pods (kube-proxy's mode ipvs): it sends packets to pods as if the node had made them, so no policy judges them; use the mode nftables or iptables";

/// Whether IPVS has a service in this network namespace with a server that is a pod. Other services, such as a virtual
/// address of API servers, do no harm.
pub(super) fn is_used(is_pod: impl Fn(IpAddr) -> bool) -> bool {
    fs::read_to_string("/proc/thread-self/net/ip_vs").is_ok_and(|text| servers(&text).any(is_pod))
}

/// The servers in the kernel's list. Each has a line: `  -> C0A80002:1F90 Masq 1 0 0`, or `[fd00:0000:…:0002]:1F90`.
fn servers(text: &str) -> impl Iterator<Item = IpAddr> {
    let of_line = |line: &str| {
        let (address, _port) = line.trim().strip_prefix("->")?.split_whitespace().next()?.rsplit_once(':')?;
        match address.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']')?.parse().ok(),
            None => from_octets(&u32::from_str_radix(address, 16).ok()?.to_be_bytes()),
        }
    };
    text.lines().filter_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.12 writes it.
    const LIST: &str = "IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0A80002:192B      Masq    1      0          0
FWM  00000007 wlc
TCP  [fd00:0096:0000:0000:0000:0000:0000:000a]:0035 rr persistent 10800
  -> [fd00:0244:0001:0000:0000:0000:0000:0007]:0035      Masq    1      0          0
  -> 0AF40107:0035      Tunnel  1      0          0
  -> garbage
";

    #[test]
    fn the_servers_of_all_services() {
        let found: Vec<String> = servers(LIST).map(|address| address.to_string()).collect();
        assert_eq!(found, ["192.168.0.2", "fd00:244:1::7", "10.244.1.7"]);
        assert_eq!(servers("").chain(servers(LIST.split("FWM").next().unwrap())).count(), 1);
    }
}
