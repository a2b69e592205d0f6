//! Foreign objects in the places of the daemon's files.

use cni_lab::Place as _;
use cni_lab::testing::{PLANTED, plant, plant_all};

use crate::lab::{CONFIG, Lab};

/// `ferrule-nic devices` and `claims` end, with the devices if they can be known.
#[test]
fn the_commands_neither_follow_nor_wait_for_anything() {
    let lab = Lab::new();
    let run = |arguments: &str, what: &str| {
        let output = lab.node.exec(&mut lab.command("timeout -k 1 20", arguments)).unwrap();
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1 | 78)), "{what}: {code:?} {}", lab.log());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    lab.configure(&format!("{CONFIG}\ndra: {{selectors: {{ifNames: [none]}}}}"));
    let records = lab.path("data/dra").display().to_string();
    for folder in
        ["/%", "/0d3c0000-0000-0000-0000-00000000000#", "/0d3c0000-0000-0000-0000-000000000011/#.json"]
    {
        plant_all(&lab.node, &format!("{records}{folder}"));
    }
    plant_all(&lab.node, &format!("{}/%.json", lab.path("data/dra-attached").display()));
    assert!(run("claims", "records").contains("no claim is prepared"));
    for kind in ["fifo", "zero"] {
        lab.says(&format!("dra-attached/{kind}.json: "));
    }
    for (file, named) in [("state", ""), ("config", "/config: ")] {
        for (kind, make) in PLANTED {
            plant(&lab.node, &lab.path(file).display().to_string(), make);
            let devices = run("devices", &format!("{kind} as {file}"));
            assert!(
                if named.is_empty() { devices.contains("  eth1  ") } else { lab.log().contains(named) },
                "{kind} as {file}: {}",
                lab.log()
            );
            lab.sh(&format!("rm {}", lab.path("log").display()));
        }
        lab.sh(&format!("rm -rf {0}; test ! -e $(dirname {0})/nowhere", lab.path(file).display()));
    }
}
