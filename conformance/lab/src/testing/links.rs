//! The kernel's state, read with `ip` and from `/proc`.

use serde_json::Value;

use crate::Place;

fn ip<P: Place>(place: &P, arguments: &str) -> Vec<Value> {
    let output = place.sh(&format!("ip -j {arguments}")).unwrap();
    if output.trim().is_empty() { Vec::new() } else { serde_json::from_str(&output).unwrap() }
}

/// The link of this name with its details and addresses, as `ip -j` prints it; `None` if it does not exist.
pub fn try_link<P: Place>(place: &P, name: &str) -> Option<Value> {
    ip(place, "-d address show").into_iter().find(|link| link["ifname"] == name)
}

/// Like [`try_link`], but panics if the link does not exist.
pub fn link<P: Place>(place: &P, name: &str) -> Value {
    try_link(place, name).unwrap_or_else(|| panic!("there is no link {name}"))
}

/// The link's flags, as `ip` spells them.
pub fn flags<P: Place>(place: &P, name: &str) -> Vec<String> {
    let link = link(place, name);
    link["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap().to_owned()).collect()
}

/// Whether the link is up.
pub fn is_up<P: Place>(place: &P, name: &str) -> bool {
    flags(place, name).iter().any(|flag| flag == "UP")
}

/// The link's MAC address.
pub fn mac<P: Place>(place: &P, name: &str) -> String {
    link(place, name)["address"].as_str().unwrap().to_owned()
}

/// The link's addresses without link-local ones, with prefix lengths, sorted.
pub fn addresses<P: Place>(place: &P, name: &str) -> Vec<String> {
    let link = link(place, name);
    let global = link["addr_info"].as_array().unwrap().iter().filter(|address| address["scope"] != "link");
    let mut global: Vec<String> = global
        .map(|address| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]))
        .collect();
    global.sort();
    global
}

/// The names of the bridge's ports, sorted.
pub fn ports<P: Place>(place: &P, bridge: &str) -> Vec<String> {
    let links = ip(place, "link show");
    let ports = links.iter().filter(|link| link["master"] == bridge);
    let mut names: Vec<String> = ports.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The routes that `ip route` shows with these arguments, such as `-6` or `table 100`.
pub fn routes<P: Place>(place: &P, arguments: &str) -> Vec<Value> {
    let (family, rest) = match arguments.strip_prefix("-6") {
        Some(rest) => ("-6", rest),
        None => ("-4", arguments),
    };
    ip(place, &format!("{family} route show {rest}"))
}

/// The value of a sysctl below `/proc/sys/net`.
pub fn sysctl<P: Place>(place: &P, name: &str) -> String {
    place.read_file(format!("/proc/sys/net/{name}")).unwrap().trim().to_owned()
}
