//! What the kernel says, by way of `ip`.

use conformance::fixture::Place;
use serde_json::Value;

fn ip<P: Place>(place: &P, arguments: &str) -> Vec<Value> {
    let output = place.sh(&format!("ip -j {arguments}")).unwrap();
    if output.trim().is_empty() { Vec::new() } else { serde_json::from_str(&output).unwrap() }
}

/// A link with its details and addresses, if there is one of this name.
pub(crate) fn try_link<P: Place>(place: &P, name: &str) -> Option<Value> {
    ip(place, "-d address show").into_iter().find(|link| link["ifname"] == name)
}

/// A link that must be there.
pub(crate) fn link<P: Place>(place: &P, name: &str) -> Value {
    try_link(place, name).unwrap_or_else(|| panic!("there is no link {name}"))
}

/// The flags of a link, as `ip` spells them.
pub(crate) fn flags<P: Place>(place: &P, name: &str) -> Vec<String> {
    let link = link(place, name);
    link["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap().to_owned()).collect()
}

/// The hardware address of a link.
pub(crate) fn mac<P: Place>(place: &P, name: &str) -> String {
    link(place, name)["address"].as_str().unwrap().to_owned()
}

/// The addresses of a link that somebody has given it, with their prefix lengths, sorted.
pub(crate) fn addresses<P: Place>(place: &P, name: &str) -> Vec<String> {
    let link = link(place, name);
    let given = link["addr_info"].as_array().unwrap().iter().filter(|address| address["scope"] != "link");
    let mut given: Vec<String> = given
        .map(|address| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]))
        .collect();
    given.sort();
    given
}

/// The names of a bridge's ports, sorted.
pub(crate) fn ports<P: Place>(place: &P, bridge: &str) -> Vec<String> {
    let links = ip(place, "link show");
    let ports = links.iter().filter(|link| link["master"] == bridge);
    let mut names: Vec<String> = ports.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The routes that `ip route` shows with these arguments, such as `-6` or `table 100`.
pub(crate) fn routes<P: Place>(place: &P, arguments: &str) -> Vec<Value> {
    let (family, rest) = match arguments.strip_prefix("-6") {
        Some(rest) => ("-6", rest),
        None => ("-4", arguments),
    };
    ip(place, &format!("{family} route show {rest}"))
}

/// A setting below `/proc/sys/net`.
pub(crate) fn sysctl<P: Place>(place: &P, name: &str) -> String {
    place.read_file(format!("/proc/sys/net/{name}")).unwrap().trim().to_owned()
}
