//! The picture as SVG. Each link of the node is a bus from which rows of cards hang, one for each attachment. All texts have the
//! size of a terminal's, so a picture of 50 pods is taller than one of 3, and not smaller.

use std::fmt::Write as _;

use super::{Graph, Pod, escaped};

/// In pixels. A character of the monospaced font is 0.6 times as wide as high; its height is 12.
const CARD: usize = 264;
const LINE: usize = 17;
const GAP: usize = 16;
/// The room of the bus above a row of cards.
const BUS: usize = 12;
const TITLE: usize = 40;
/// The characters in a line of a card, without the margins.
const CHARACTERS: usize = 34;
/// A node with more attachments on a link has six cards in a row there, instead of four.
const MOST_WIDE: usize = 12;
/// A card shows this many host ports and the number of the others.
const MOST_PORTS: usize = 4;

const XML: [(char, &str); 4] = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")];
const STYLE: &str = "text{font:12px monospace;fill:#24292f}.n{font-weight:bold}.t{font-size:16px;font-weight:bold}.p{fill:#9a4a00}\
    .l{fill:#0550ae}rect{fill:#fff;stroke:#57606a}.b{fill:#ddf4ff;stroke:#0969da}.alive{stroke:#1a7f37}.dead{stroke:#cf222e;\
    stroke-dasharray:4}.unknown{stroke:#9a6700;stroke-dasharray:4}path{fill:none;stroke:#0969da;stroke-width:1.5}";

pub(super) fn draw(graph: &Graph) -> String {
    let (mut body, mut width, mut y) = (String::new(), CARD + 2 * GAP, TITLE);
    for group in &graph.groups {
        let columns = group.pods.len().min(if group.pods.len() > MOST_WIDE { 6 } else { 4 });
        let count = match group.pods.len() {
            1 => "1 attachment".to_owned(),
            count => format!("{count} attachments"),
        };
        let _ =
            write!(body, "<rect class=\"b\" x=\"{GAP}\" y=\"{y}\" width=\"{CARD}\" height=\"28\" rx=\"4\"/>");
        line(&mut body, GAP, y + 18, "n", &format!("{}, {count}", group.name));
        // The trunk leads down from the link, left of the cards.
        let trunk = GAP + GAP / 2;
        y += 28;
        let _ = write!(body, "<path d=\"M{trunk} {y}V");
        let (mut rows, mut bus) = (String::new(), y);
        for row in group.pods.chunks(columns.max(1)) {
            bus = y + BUS;
            let last = 2 * GAP + (row.len() - 1) * (CARD + GAP) + CARD / 2;
            let _ = write!(rows, "<path d=\"M{trunk} {bus}H{last}\"/>");
            let lines = row.iter().map(|pod| lines(pod).len()).max().unwrap_or(0);
            for (column, pod) in row.iter().enumerate() {
                card(&mut rows, 2 * GAP + column * (CARD + GAP), bus, pod);
            }
            y = bus + BUS + lines * LINE + GAP;
        }
        let _ = write!(body, "{bus}\"/>{rows}");
        width = width.max(2 * GAP + columns * (CARD + GAP));
        y += GAP;
    }
    let mut title = String::new();
    line(&mut title, GAP - 8, 25, "t", &format!("node {}", graph.node));
    if graph.groups.is_empty() {
        line(&mut title, GAP - 8, y, "n", "no attachments");
        y += TITLE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{y}\" viewBox=\"0 0 {width} {y}\">\
        <style>{STYLE}</style><rect x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"6\"/>{title}{body}</svg>\n",
        width - 1,
        y - 1
    )
}

/// A card that hangs from the bus. Its tooltip has all texts in full.
fn card(body: &mut String, x: usize, bus: usize, pod: &Pod) {
    let (lines, y) = (lines(pod), bus + BUS);
    let _ = write!(body, "<path d=\"M{} {bus}V{y}\"/><g><title>", x + CARD / 2);
    for text in [&pod.name].into_iter().chain(&pod.addresses).chain(&pod.ports) {
        let _ = writeln!(body, "{}", escaped(text, &XML));
    }
    let (state, height) = (pod.state, lines.len() * LINE + 8);
    let _ = write!(
        body,
        "</title><rect class=\"{state}\" x=\"{x}\" y=\"{y}\" width=\"{CARD}\" height=\"{height}\" rx=\"4\"/>"
    );
    for (at, (class, text)) in lines.iter().enumerate() {
        line(body, x, y + (at + 1) * LINE, class, text);
    }
    body.push_str("</g>");
}

/// The lines of a card with their classes.
fn lines(pod: &Pod) -> Vec<(&'static str, String)> {
    let mut lines = vec![("n", pod.name.clone())];
    if pod.state != "alive" {
        lines.push(("", pod.state.to_owned()));
    }
    lines.extend(pod.addresses.iter().map(|address| ("", address.clone())));
    let shown = if pod.ports.len() > MOST_PORTS { MOST_PORTS - 1 } else { pod.ports.len() };
    lines.extend(pod.ports[..shown].iter().map(|port| ("p", format!("host port {port}"))));
    if shown < pod.ports.len() {
        lines.push(("p", format!("and {} more host ports", pod.ports.len() - shown)));
    }
    lines.extend(pod.limits.iter().map(|(to, from)| ("l", format!("limit in {to}, out {from} bit/s"))));
    lines
}

/// A line of text. A long one loses its middle: the end of a pod's name tells it from others.
fn line(body: &mut String, x: usize, y: usize, class: &str, text: &str) {
    let characters: Vec<char> = text.chars().collect();
    let half = CHARACTERS / 2;
    let text: String = match characters.len() > CHARACTERS {
        true => characters[..half]
            .iter()
            .chain(&['…'])
            .chain(&characters[characters.len() - half + 1..])
            .collect(),
        false => text.to_owned(),
    };
    let _ = write!(body, "<text class=\"{class}\" x=\"{}\" y=\"{y}\">{}</text>", x + 8, escaped(&text, &XML));
}

#[cfg(test)]
mod tests {
    use super::super::tests::graph;
    use super::*;

    /// The numbers of these attributes, in each element of this name that has all of them.
    fn numbers(svg: &str, element: &str, names: [&str; 4]) -> Vec<[usize; 4]> {
        let begin = format!("<{element} ");
        let elements = svg.split(&begin).skip(1).map(|rest| rest.split('>').next().unwrap());
        let number = |tag: &str, name: &str| {
            tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse::<usize>().ok()
        };
        let all = |tag| Some(names.map(|name| number(tag, name).unwrap_or(usize::MAX)));
        elements.filter_map(all).filter(|found| !found.contains(&usize::MAX)).collect()
    }

    /// No card covers another, all are in the picture, and all texts are in their cards.
    #[test]
    fn three_and_fifty_pods_are_legible() {
        for (pods, columns) in [(0, 1), (1, 1), (3, 3), (12, 4), (50, 6)] {
            let svg = draw(&graph(pods));
            let [width, height] = ["width", "height"].map(|name| {
                svg.split(&format!(" {name}=\""))
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
                    .parse::<usize>()
                    .unwrap()
            });
            assert_eq!(width, (2 * GAP + columns * (CARD + GAP)).max(CARD + 2 * GAP), "{pods} pods");
            let boxes = numbers(&svg, "rect", ["x", "y", "width", "height"]);
            assert_eq!(boxes.len(), pods + 3, "two links and a card for each pod");
            for (at, [x, y, w, h]) in boxes.iter().enumerate() {
                assert!(x + w <= width && y + h <= height, "{pods} pods: {x} {y} {w} {h}");
                for [x2, y2, w2, h2] in &boxes[..at] {
                    let is_apart = x + w <= *x2 || x2 + w2 <= *x || y + h <= *y2 || y2 + h2 <= *y;
                    assert!(is_apart, "{pods} pods: {x} {y} covers {x2} {y2}");
                }
            }
            for text in svg.split("<text ").skip(1) {
                let text = text.split_once('>').unwrap().1.split('<').next().unwrap();
                let characters = XML
                    .iter()
                    .fold(text.to_owned(), |text, (_, entity)| text.replace(entity, "?"))
                    .chars()
                    .count();
                assert!(characters <= CHARACTERS, "{text}");
            }
        }
    }

    #[test]
    fn texts_are_escaped_and_elements_are_closed() {
        let svg = draw(&graph(3));
        for text in [
            ">node node-1<",
            ">cni0, 3 attachments<",
            ">shop/web-0<",
            ">limit in 40M, out - bit/s<",
            "class=\"dead\"",
            ">host port 8080/tcp → 80<",
            ">and 203 more host ports<",
            ">&lt;a&amp;&quot;b&quot;\\ [1m&gt;/long-",
        ] {
            assert!(svg.contains(text), "{text}\n{svg}");
        }
        assert!(!svg.contains('\u{1b}'));
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            let name = tag.split(' ').next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty());
        assert!(draw(&Graph::default()).contains("no attachments"));
    }
}
