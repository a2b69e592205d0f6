//! `chain` stays while a configuration or a cached one names it.

use std::fs;

use crate::fixture::in_a_folder;

#[test]
fn it_stays_for_folded_pods() {
    in_a_folder(|f| {
        fs::create_dir_all(f.path("net.d")).unwrap();
        // {"plugins":[{"type":"chain","plugins":[{"type":"bridge"}]}]}
        let cached = r#"{"config": "eyJwbHVnaW5zIjpbeyJ0eXBlIjoiY2hhaW4iLCJwbHVnaW5zIjpbeyJ0eXBlIjoiYnJpZGdlIn1dfV19"}"#;
        fs::create_dir_all("/var/lib/cni/results").unwrap();
        fs::write("/var/lib/cni/results/net-c1-eth0", cached).unwrap();
        f.succeeds("install --plugins bridge,chain");
        let said = f.run("uninstall --conf-dir net.d");
        said.says("chain: stays, because /var/lib/cni/results/net-c1-eth0 names it");
        assert_eq!(said.status, 3);
        assert!(
            f.path("bin/chain").exists() && f.path("bin/ferrule").exists() && !f.path("bin/bridge").exists()
        );
        fs::remove_file("/var/lib/cni/results/net-c1-eth0").unwrap();
        fs::write(f.path("net.d/10.conflist"), r#"{"plugins": [{"type": "chain"}]}"#).unwrap();
        f.run("uninstall --conf-dir net.d").says("net.d/10.conflist names it");
        fs::remove_file(f.path("net.d/10.conflist")).unwrap();
        f.succeeds("uninstall --conf-dir net.d");
        assert!(!f.path("bin/chain").exists() && !f.path("bin/ferrule").exists());
    });
}
