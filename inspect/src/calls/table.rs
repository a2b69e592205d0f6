//! The table of `ferrule log`. Pure.

use super::Call;
use crate::table::{Cell, Column, Row, Style, Tone, layout};
use crate::text::short;

const COLUMNS: [Column; 8] = [
    ("TIME (UTC)", 14),
    ("MS", 5),
    ("VERB", 5),
    ("PLUGIN", 6),
    ("NETWORK", 5),
    ("WHO", 6),
    ("LONGEST STEP", 8),
    ("OUTCOME", 11),
];

/// One line for each call, and the message of an error below it.
pub fn table(calls: &[Call], style: Style) -> String {
    let rows: Vec<Row> = calls.iter().map(row).collect();
    if rows.is_empty() { "no calls\n".to_owned() } else { layout(&COLUMNS, &rows, style) }
}

fn row(call: &Call) -> Row {
    let pod = Some(call.text("pod")).filter(|pod| !pod.is_empty());
    let who = pod.map_or_else(|| short(call.text("container")), str::to_owned);
    let outcome = match call.error() {
        None => addresses(call).into(),
        Some((code, _)) => Cell { text: format!("error {code}"), tone: Tone::Bad },
    };
    // 2026-11-22T09:55:00.123456Z without the year and the fraction.
    let time = call.text("time").get(5..19).unwrap_or_default().replace('T', " ");
    let texts = [time, format!("{:>5}", milliseconds(call.micros()))];
    let names = [call.text("verb"), call.text("plugin"), call.text("network"), &who, &longest_step(call)];
    let texts = texts.into_iter().chain(names.map(str::to_owned));
    let cells = texts.map(|text| Cell::from(clean(&text))).chain([outcome]).collect();
    Row { cells, note: call.error().map(|(_, msg)| clean(msg)) }
}

fn addresses(call: &Call) -> String {
    let ips = call.json["result"]["ips"].as_array().map_or(&[][..], Vec::as_slice);
    ips.iter().filter_map(|ip| ip["address"].as_str()).map(clean).collect::<Vec<_>>().join(",")
}

fn longest_step(call: &Call) -> String {
    let steps = call.json["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let timed = steps.iter().filter_map(|step| Some((step["us"].as_u64()?, step["step"].as_str()?)));
    let longest = timed.max_by_key(|(us, _)| *us);
    longest.map_or_else(String::new, |(us, name)| format!("{name} {}", milliseconds(us)))
}

/// No floating point, whose formatting takes several kB.
fn milliseconds(us: u64) -> String {
    format!("{}.{:02}", us / 1000, us % 1000 / 10)
}

/// Without control characters, which a terminal would obey.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read::parse;
    use super::*;

    #[test]
    fn columns() {
        let calls = parse(
            br#"{"time":"2026-11-22T09:55:00.123456Z","plugin":"bridge","verb":"ADD","network":"net","container":"0123456789abcdef","ifname":"eth0","pod":"shop/web-1","us":12345,"steps":[{"step":"request","us":50,"count":1},{"step":"host-local","us":1239,"count":1}],"result":{"ips":[{"address":"10.0.0.2/24"}]}}
{"time":"2026-11-22T09:55:01.123456Z","plugin":"host-local","verb":"DEL","network":"net","container":"c1","ifname":"eth0","pod":"","us":99,"steps":[],"error":{"code":7,"msg":"bad\u001b[1m\nkey"}}"#,
        );
        let expected = "\
TIME (UTC)      MS     VERB  PLUGIN      NETWORK  WHO         LONGEST STEP     OUTCOME
11-22 09:55:00  12.34  ADD   bridge      net      shop/web-1  host-local 1.23  10.0.0.2/24
11-22 09:55:01   0.09  DEL   host-local  net      c1                           error 7
    bad [1m key
";
        assert_eq!(table(&calls, Style::default()), expected);
    }
}
