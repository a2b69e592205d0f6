//! The ledgers of `shared`: the blocks of addresses that this node has of networks that many nodes share.

use cni_common::spec::{CniError, Context as _};
use ferrule_blocks::ledger::State;
use ferrule_blocks::plan::Use;
use ferrule_shared::list::{self, Listed};

use super::Scene;
use crate::model::{self, Kind, Maker, Object, Owner, Sockets, name};

/// The blocks of all ledgers. A ledger that cannot be read is an object too: nothing of it is removed.
pub(super) fn blocks(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for folder in &scene.ledgers {
        for listed in list::ledgers(folder).context(|| folder.display().to_string())? {
            objects.extend(of_ledger(&listed));
        }
    }
    Ok(objects)
}

fn of_ledger(listed: &Listed) -> Vec<Object> {
    let object = |block: String, facts: Vec<(&'static str, String)>| Object {
        facts: facts.into_iter().collect(),
        sign: Some(model::State::Alive("a block of this node".to_owned())),
        ..Object::new(
            Kind::Block,
            block,
            listed.path.display().to_string(),
            Owner::default().on(&listed.network()),
            Maker::Ferrule,
        )
    };
    let read = listed.ledger.as_ref().map_err(Clone::clone);
    let uses = read.and_then(|ledger| Ok((ledger, list::uses(ledger).map_err(|error| error.to_string())?)));
    let of_use = |domain: &str, state: State, of: Use| {
        let left = if state == State::Open { of.capacity.saturating_sub(of.used) } else { 0 };
        let facts = [
            ("domain", domain.to_owned()),
            ("use", name(&state)),
            ("used", of.used.to_string()),
            ("free", left.to_string()),
        ];
        object(of.block.network().to_string(), facts.into())
    };
    match uses {
        Ok((ledger, uses)) => {
            uses.into_iter().map(|(_, state, of)| of_use(&ledger.network.domain, state, of)).collect()
        }
        Err(why) => vec![object("?".to_owned(), vec![("use", format!("unreadable: {why}"))])],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn each_block_has_its_free_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let (ledgers, stores) = (dir.path().join("ledgers"), dir.path().join("stores"));
        fs::create_dir(&ledgers).unwrap();
        fs::create_dir_all(stores.join("net")).unwrap();
        for ip in ["10.0.0.9", "10.0.0.17", "10.0.0.200"] {
            fs::write(stores.join("net").join(ip), "c\r\neth0").unwrap();
        }
        let block = |first: &str, state: &str| json!({"first": first, "size": 8, "state": state, "uid": "u"});
        let ledger = json!({"ferruleBlocks": 1, "network": "net", "domain": "lan", "dataDir": stores, "boot": "b",
            "sets": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1", "rangeEnd": "10.0.0.254", "blockSize": 8, "gateway": "10.0.0.1"}]],
            "blocks": [block("10.0.0.0", "open"), block("10.0.0.8", "open"), block("10.0.0.16", "lost")]});
        fs::write(ledgers.join("net.json"), ledger.to_string()).unwrap();
        fs::write(ledgers.join("broken.json"), "{").unwrap();
        let found: Vec<_> = list::ledgers(&ledgers).unwrap().iter().flat_map(of_ledger).collect();
        let cells =
            |object: &Object| ["use", "used", "free"].map(|key| object.fact(key).to_owned()).join(" ");
        assert!(cells(&found[0]).starts_with("unreadable: EOF"), "{}", cells(&found[0]));
        let rest: Vec<String> =
            found[1..].iter().map(|object| format!("{} {}", object.name, cells(object))).collect();
        assert_eq!(rest, ["10.0.0.0/29 open 0 6", "10.0.0.8/29 open 1 7", "10.0.0.16/29 lost 1 0"]);
        assert!(found.iter().all(|object| object.removal.is_none() && object.owner.network.is_some()));
        assert!(list::ledgers(&dir.path().join("none")).unwrap().is_empty());
    }
}
