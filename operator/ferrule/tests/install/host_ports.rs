//! Host ports of running pods, with a portmap that records how it is called. conformance/e2e/tests/rollback.rs has
//! real host ports.

use std::fs;

use crate::fixture::{Fixture, in_a_folder, snapshot};

pub(crate) const FROM_V1: &str = "install --from v1 --plugins bridge,portmap";
const FROM_V2: &str = "install --from v2 --plugins bridge,portmap";

/// v1 and v2 with a portmap that records its arguments in `handed`, and whether it was still installed then. It exits
/// with the status in `status`.
pub(crate) fn with_portmap(f: &Fixture) {
    for (folder, version) in [("v1", "1.0.0"), ("v2", "2.0.0")] {
        f.fake(folder, version, &["portmap"]);
        let path = f.path(&format!("{folder}/portmap"));
        let answers = fs::read_to_string(&path).unwrap();
        let dir = f.dir.display();
        let script = format!(
            "#!/bin/sh\n\
             if [ \"$1\" = hand-back ]; then\n\
             cmp -s {bin}/portmap {dir}/{folder}/portmap && place=there || place=gone\n\
             echo \"$* $place$CNI_COMMAND\" >>{dir}/handed\n\
             echo 'container one: 2 host ports'\n\
             [ $(cat {dir}/status) -eq 0 ] || echo 'container two: 3 host ports stay: because' >&2\n\
             exit $(cat {dir}/status)\n\
             fi\n{answers}",
            bin = f.bin.display(),
        );
        f.script(&format!("{folder}/portmap"), &script);
    }
    f.fake("bin", "old", &["bridge", "portmap"]);
    f.fake("old", "old", &["bridge", "portmap"]);
    fs::write(f.path("status"), "0").unwrap();
    fs::write(f.path("handed"), "").unwrap();
}

/// Compares the recorded calls, and forgets them.
#[track_caller]
fn handed(f: &Fixture, calls: &[&str]) {
    let recorded = fs::read_to_string(f.path("handed")).unwrap();
    assert_eq!(recorded.lines().collect::<Vec<_>>(), calls);
    fs::write(f.path("handed"), "").unwrap();
}

#[test]
fn they_are_handed_over_before_portmap_goes_and_once_more() {
    in_a_folder(|f| {
        with_portmap(f);
        for verb in ["rollback", "uninstall"] {
            f.succeeds(FROM_V1);
            handed(f, &[]);
            f.succeeds(verb).says("portmap: hand over container one: 2 host ports");
            handed(f, &["hand-back there", "hand-back gone"]);
            f.same("old/portmap", "portmap");
        }
        for backend in ["iptables", "nftables"] {
            f.succeeds(FROM_V1);
            f.succeeds(&format!("uninstall --host-ports {backend}"));
            handed(
                f,
                &[
                    format!("hand-back --to {backend} there").as_str(),
                    &format!("hand-back --to {backend} gone"),
                ],
            );
        }
    });
}

#[test]
fn they_stay_for_an_earlier_ferrule_or_if_told_so() {
    in_a_folder(|f| {
        with_portmap(f);
        f.succeeds(FROM_V1);
        f.succeeds(FROM_V2);
        f.succeeds("rollback");
        f.same("v1/portmap", "portmap");
        f.succeeds("uninstall --plugins bridge");
        f.succeeds("uninstall --host-ports keep");
        f.same("old/portmap", "portmap");
        handed(f, &[]);
    });
}

#[test]
fn nothing_goes_if_they_cannot_be_handed_over() {
    in_a_folder(|f| {
        with_portmap(f);
        f.succeeds(FROM_V1);
        let was = snapshot(&f.bin);
        fs::write(f.path("status"), "1").unwrap();
        for verb in ["rollback", "uninstall"] {
            let said = f.ends(1, verb);
            said.says("container two: 3 host ports stay");
            said.says("nothing is put back; with --host-ports keep");
            assert_eq!(snapshot(&f.bin), was);
        }
    });
}

#[test]
fn those_that_have_to_stay_are_named() {
    in_a_folder(|f| {
        with_portmap(f);
        f.succeeds(FROM_V1);
        fs::write(f.path("status"), "3").unwrap();
        let was = snapshot(&f.bin);
        f.ends(3, "uninstall --dry-run").says("portmap: would hand over container one: 2 host ports");
        handed(f, &["hand-back --dry-run there"]);
        assert_eq!(snapshot(&f.bin), was);
        f.ends(3, "uninstall").says("portmap: container two: 3 host ports stay: because");
        f.same("old/portmap", "portmap");
    });
}

#[test]
fn any_name_of_the_program_hands_over() {
    in_a_folder(|f| {
        with_portmap(f);
        fs::copy(f.path("v1/portmap"), f.path("v1/bridge")).unwrap();
        f.succeeds(FROM_V1);
        // The names are links of one file, so it is not overwritten.
        f.sh("cp --remove-destination old/portmap bin/portmap");
        // Even if that name stays.
        f.succeeds("uninstall --plugins portmap");
        handed(f, &["hand-back gone", "hand-back gone"]);
        f.succeeds("uninstall");
        f.fake("v1", "1.0.0", &["bridge"]);
        f.succeeds(FROM_V1);
        f.sh("cp --remove-destination old/portmap bin/portmap");
        f.ends(3, "uninstall").says("is not there any more");
        f.same("old/bridge", "bridge");
    });
}
