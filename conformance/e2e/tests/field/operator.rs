//! What operators type and read.

use super::Report;
use super::Step::{Node, Says};

pub(crate) fn reports() -> Vec<Report> {
    let written = |script, verdict| vec![Node(script), Says("ferrule doctor --conf-dir /run/conf", verdict)];
    vec![
        Report {
            source: "containerd#11076, cri-o#6541",
            sentence: "doctor refuses a list of plugins in a file for one plugin, as runtimes do, and names the ending",
            steps: written(
                r#"mkdir /run/conf && printf '{"name":"x","cniVersion":"1.0.0","plugins":[{"type":"loopback"}]}' >/run/conf/x.conf"#,
                "give the file a name that ends with .conflist",
            ),
        },
        Report {
            source: "containerd#11076, the other way round",
            sentence: "doctor refuses one plugin in a file for a list",
            steps: written(
                r#"mkdir /run/conf && printf '{"name":"x","cniVersion":"1.0.0","type":"loopback"}' >/run/conf/x.conflist"#,
                "give the file a name that ends with .conf",
            ),
        },
    ]
}
