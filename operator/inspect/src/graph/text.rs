//! The languages of Graphviz and Mermaid.

use std::fmt::Write as _;

use super::{Graph, Pod, escaped};

/// In a quoted text of dot, `\n` is a line break.
const DOT: [(char, &str); 2] = [('"', "\\\""), ('\\', "\\\\")];
/// Mermaid takes entities and a line break of HTML.
const MERMAID: [(char, &str); 5] =
    [('"', "#quot;"), ('<', "#lt;"), ('>', "#gt;"), ('&', "#amp;"), ('#', "#35;")];

pub(super) fn dot(graph: &Graph) -> String {
    let label =
        |lines: &[String]| lines.iter().map(|line| escaped(line, &DOT)).collect::<Vec<_>>().join("\\n");
    let mut text = format!(
        "digraph node {{\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n  n [label=\"{}\"];\n",
        escaped(&graph.node, &DOT)
    );
    for (g, group) in graph.groups.iter().enumerate() {
        let _ =
            writeln!(text, "  g{g} [label=\"{}\", style=bold];\n  n -> g{g};", escaped(&group.name, &DOT));
        for (p, pod) in group.pods.iter().enumerate() {
            let style = if pod.state == "alive" { "solid" } else { "dashed" };
            let _ = writeln!(text, "  g{g}p{p} [label=\"{}\", style={style}];", label(&box_of(pod)));
            let _ = writeln!(text, "  g{g} -> g{g}p{p} [label=\"{}\"];", label(&limits(pod)));
            if !pod.ports.is_empty() {
                let ports = label(&pod.ports);
                let _ =
                    writeln!(text, "  n -> g{g}p{p} [label=\"{ports}\", style=dashed, constraint=false];");
            }
        }
    }
    text + "}\n"
}

pub(super) fn mermaid(graph: &Graph) -> String {
    let label =
        |lines: &[String]| lines.iter().map(|line| escaped(line, &MERMAID)).collect::<Vec<_>>().join("<br>");
    let mut text = format!("flowchart LR\n  n[\"{}\"]\n", escaped(&graph.node, &MERMAID));
    for (g, group) in graph.groups.iter().enumerate() {
        let _ = writeln!(text, "  n --- g{g}([\"{}\"])", escaped(&group.name, &MERMAID));
        for (p, pod) in group.pods.iter().enumerate() {
            let limits = label(&limits(pod));
            let edge = if limits.is_empty() { "---".to_owned() } else { format!("---|\"{limits}\"|") };
            let _ = writeln!(text, "  g{g} {edge} g{g}p{p}[\"{}\"]", label(&box_of(pod)));
            if !pod.ports.is_empty() {
                let _ = writeln!(text, "  n -.->|\"{}\"| g{g}p{p}", label(&pod.ports));
            }
        }
    }
    text
}

fn box_of(pod: &Pod) -> Vec<String> {
    let name = if pod.state == "alive" { pod.name.clone() } else { format!("{} ({})", pod.name, pod.state) };
    [name].into_iter().chain(pod.addresses.iter().cloned()).collect()
}

fn limits(pod: &Pod) -> Vec<String> {
    pod.limits.iter().flat_map(|(to, from)| [format!("in {to}"), format!("out {from}")]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::graph;
    use super::*;

    #[test]
    fn graphviz() {
        let text = dot(&graph(2));
        for line in [
            "  g0 [label=\"cni0\", style=bold];\n  n -> g0;\n",
            "  g0p0 [label=\"shop/web-0\\neth0 10.1.0.2\", style=solid];\n  g0 -> g0p0 [label=\"in 40M\\nout -\"];\n",
            "  n -> g0p1 [label=\"8080/tcp → 80\", style=dashed, constraint=false];\n",
            "  g1 [label=\"network \\\"lan\\\"\", style=bold];\n",
            "[label=\"<a&\\\"b\\\"\\\\ [1m>/long-",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn mermaid_text() {
        let text = mermaid(&graph(2));
        for line in [
            "flowchart LR\n  n[\"node-1\"]\n  n --- g0([\"cni0\"])\n",
            "  g0 ---|\"in 40M<br>out -\"| g0p0[\"shop/web-0<br>eth0 10.1.0.2\"]\n",
            "  g0 --- g0p1[\"shop/web-1 (dead)<br>eth0 10.1.0.3\"]\n  n -.->|\"8080/tcp → 80\"| g0p1\n",
            "  n --- g1([\"network #quot;lan#quot;\"])\n",
            "[\"#lt;a#amp;#quot;b#quot;\\ [1m#gt;/long-",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
