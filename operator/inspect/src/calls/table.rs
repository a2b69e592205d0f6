//! The table of `ferrule log`. Pure.

use std::time::Duration;

use itertools::Itertools as _;
use serde_json::Value;

use super::Call;
use crate::table::{Row, Style, layout};
use crate::text::short;

const TITLES: [&str; 9] =
    ["TIME (UTC)", "MS", "VERB", "PLUGIN", "NETWORK", "WHO", "LONGEST STEP", "TRACE", "OUTCOME"];
/// The place of the trace, which is left out if no call has one.
const TRACE: usize = 7;

/// One line for each call, and the message of an error below it.
pub fn table(calls: &[Call], style: Style) -> String {
    if calls.is_empty() {
        return "no calls\n".to_owned();
    }
    let (mut titles, mut rows) = (TITLES.to_vec(), calls.iter().map(row).collect::<Vec<Row>>());
    if calls.iter().all(|call| call.trace().is_empty()) {
        titles.remove(TRACE);
        rows.iter_mut().for_each(|row| drop(row.cells.remove(TRACE)));
    }
    layout(&titles, &rows, style)
}

fn row(call: &Call) -> Row {
    let (pod, container) = (call.text("pod"), short(call.text("container")));
    let cells = [
        // 2026-11-22T09:55:00.123456Z without the year and the fraction.
        call.text("time").get(5..19).unwrap_or_default().replace('T', " "),
        format!("{:>5}", milliseconds(call.micros())),
        call.text("verb").to_owned(),
        call.text("plugin").to_owned(),
        call.text("network").to_owned(),
        if pod.is_empty() { container } else { pod }.to_owned(),
        longest_step(call),
        short(call.trace()).to_owned(),
        call.error().map_or_else(|| addresses(call), |(code, _)| format!("error {code}")),
    ];
    Row { cells: cells.into(), note: call.error().map(|(_, msg)| msg.to_owned()) }
}

pub(super) fn addresses(call: &Call) -> String {
    let ips = call.json["result"]["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str()).join(",")
}

fn longest_step(call: &Call) -> String {
    let steps = call.json["steps"].as_array().into_iter().flatten();
    let timed = |step: &Value| Some((step["us"].as_u64()?, step["step"].as_str()?.to_owned()));
    let longest = steps.filter_map(timed).max_by_key(|(us, _)| *us);
    longest.map_or_else(String::new, |(us, name)| format!("{name} {}", milliseconds(us)))
}

fn milliseconds(us: u64) -> String {
    format!("{:.2}", Duration::from_micros(us).as_secs_f64() * 1000.0)
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
11-22 09:55:00  12.35  ADD   bridge      net      shop/web-1  host-local 1.24  10.0.0.2/24
11-22 09:55:01   0.10  DEL   host-local  net      c1                           error 7
    bad [1m key
";
        assert_eq!(table(&calls, Style::default()), expected);

        let traced =
            [Call { json: serde_json::json!({"trace": {"id": "4bf92f3577b34da6a3ce929d0e0e4736"}}) }];
        let text = table(&traced, Style::default());
        assert!(
            text.contains("LONGEST STEP  TRACE         OUTCOME") && text.contains("  4bf92f3577b3\n"),
            "{text}"
        );
    }
}
