//! The routes of `ferrule-node`: the ways to the pods of other nodes.

use std::collections::HashMap;
use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kit::cluster::{ROUTE_PROTOCOL, STATE, STATUS_FILE};
use serde_json::Value;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets, State};

/// The routes, with what the status file says of them.
pub(super) fn routes(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut routes = Vec::new();
    for family in IpFamily::ALL {
        routes.extend(sockets.route.routes(family, MAIN_TABLE).context(|| "list the routes")?);
    }
    routes.retain(|route| route.protocol == ROUTE_PROTOCOL);
    if routes.is_empty() {
        return Ok(Vec::new());
    }
    let names: HashMap<u32, &str> =
        scene.links.iter().map(|(link, _)| (link.index, link.name.as_str())).collect();
    let nodes = nodes(&Path::new(STATE).join(STATUS_FILE));
    Ok(routes.iter().map(|route| object(route, &names, &nodes)).collect())
}

/// The node of each podCIDR, and since when it is reached as it is. None without a file that can be read.
fn nodes(path: &Path) -> HashMap<String, (String, String)> {
    let status: Value =
        file::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = status["nodes"].as_array().into_iter().flatten().flat_map(|node| {
        let networks = node["networks"].as_array().into_iter().flatten();
        networks.map(move |network| (text(&network["network"]), (text(&node["name"]), text(&node["since"]))))
    });
    all.collect()
}

fn object(
    route: &StoredRoute,
    names: &HashMap<u32, &str>,
    nodes: &HashMap<String, (String, String)>,
) -> Object {
    let via = route.gws.first().map_or_else(String::new, |gw| format!("via {gw} "));
    let link = route.links.first().and_then(|index| names.get(index)).unwrap_or(&"?");
    let dst = route.dst.to_string();
    let (node, since) = nodes.get(&dst).cloned().unwrap_or_default();
    let place = format!("{via}dev {link}");
    Object {
        facts: [("node", node), ("since", since)].into(),
        sign: Some(State::Alive("the way to another node".to_owned())),
        ..Object::new(Kind::Route, dst, place, Owner::default(), Maker::Ferrule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_names_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STATUS_FILE);
        assert!(nodes(&path).is_empty());
        let text =
            r#"{"nodes":[{"name":"n2","since":"S","networks":[{"network":"10.244.2.0/24"}]},{"name":"n3"}]}"#;
        std::fs::write(&path, text).unwrap();
        assert_eq!(nodes(&path)["10.244.2.0/24"], ("n2".to_owned(), "S".to_owned()));
    }
}
