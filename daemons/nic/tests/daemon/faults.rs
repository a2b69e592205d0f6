//! Bad input: one clear line and exit status 78, which the systemd unit does not restart.

use ferrule_fake_kubelet::Knobs;

use crate::lab::{CONFIG, Lab, NIC};

#[test]
fn one_error_each() {
    let lab = Lab::new();
    for (config, part) in [
        ("resourceList: [{resourceName: nic, selector: {}}]", "unknown field `selector`"),
        (
            "resourceList: [{resourceName: a, resourcePrefix: kubernetes.io, selectors: {}}]",
            "the kubelet refuses",
        ),
    ] {
        lab.configure(config);
        for command in ["", "devices"] {
            let before = lab.log().lines().count();
            let output = lab.run(command);
            assert_eq!(output.status.code(), Some(78), "{config}");
            let log = lab.log();
            let lines: Vec<_> = log.lines().skip(before).collect();
            assert!(lines.len() == 1 && lines[0].contains(part), "{config}: {lines:?}");
        }
    }
    lab.configure(CONFIG);
    let long = format!("--device-plugin-dir {}", lab.path(&"x".repeat(90)).display());
    assert_eq!(lab.run(&long).status.code(), Some(78));
    assert!(lab.log().ends_with("/ferrule.dev_nic.sock\n"), "{}", lab.log());
    std::fs::remove_file(lab.path("config")).unwrap();
    assert_eq!(lab.run("").status.code(), Some(78));
}

#[test]
fn a_missing_folder_is_waited_for() {
    let lab = Lab::new();
    let mut daemon = lab.daemon("");
    lab.says(&format!("waits for {}/kubelet.sock", lab.plugins().display()));
    assert_eq!(lab.log().lines().count(), 1, "{}", lab.log());
    let kubelet = lab.kubelet(Knobs::new());
    lab.allocatable(&kubelet, 2);
    assert!(daemon.is_running());
    kubelet.allocate(NIC, &["eth1"]).unwrap();
}
