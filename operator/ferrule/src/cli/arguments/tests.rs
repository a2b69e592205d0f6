use clap::CommandFactory as _;
use clap::error::ErrorKind;
use ferrule_inspect::view::View;
use ferrule_install::options::HostPorts;

use super::*;

fn parse(words: &str) -> Result<Command, ErrorKind> {
    let words = ["ferrule"].into_iter().chain(words.split(' '));
    Command::try_parse_from(words).map_err(|error| error.kind())
}

#[test]
fn definitions_are_sound() {
    Command::command().debug_assert();
}

#[test]
fn changes() {
    let Command::Install(install) =
        parse("install --bin-dir=/b --from /f --plugins bridge,portmap --wait 5 --dry-run").unwrap()
    else {
        panic!()
    };
    assert_eq!((install.change.bin_dir, install.from), ("/b".into(), Some("/f".into())));
    assert_eq!(install.change.plugins.unwrap().len(), 2);
    assert!(install.change.dry_run && install.change.wait == 5);
    let words = "uninstall --force --host-ports nftables --host-ports keep --data-dir /d --data-dir=/e";
    let Command::Uninstall(out) = parse(words).unwrap() else { panic!() };
    assert!(out.force && out.host_ports == Some(HostPorts::Keep) && out.data_dirs.len() == 2);
}

#[test]
fn views_and_roots() {
    let words = "inspect why 10.1.0.2 --json --watch=5 --data-dir /d --cache-dir=/c";
    let Command::Inspect(why) = parse(words).unwrap() else { panic!() };
    assert_eq!((why.query.view, why.query.what.as_deref()), (View::Why, Some("10.1.0.2")));
    assert!(why.json && why.watch == Some(5) && why.state.cache.dir.ends_with("c"));
    let Command::Inspect(pods) = parse("inspect --all --watch").unwrap() else { panic!() };
    assert!(
        pods.query.view == View::Pods
            && pods.query.all
            && pods.watch == Some(2)
            && pods.state.node.init.is_none()
    );
    let Command::Check(check) = parse("check --root /host --bin-dir /a --bin-dir=/b").unwrap() else {
        panic!()
    };
    assert_eq!(
        (check.node.init, check.plugins.programs.bin_dir.len(), check.plugins.timeout),
        (Some(1), 2, 30)
    );
    let Command::Log(log) = parse("log --failed --slowest 5 --container=shop/web --file /l").unwrap() else {
        panic!()
    };
    assert!(log.failed && log.slowest == Some(5) && log.container.as_deref() == Some("shop/web"));
}

#[test]
fn wrong_usage() {
    for words in [
        "bogus",
        "--bogus",
        "install bridge",
        "install --from",
        "install --from=",
        "install --wait soon",
        "install --host-ports keep",
        "uninstall --from /f",
        "uninstall --host-ports ipvs",
        "status --force",
        "gc",
        "gc --yes --dry-run",
        "gc --yes --init=0",
        "check --yes",
        "shape pod",
        "shape --ingress 10M",
        "shape pod --egress 10x",
        "repair",
        "repair --yes --dry-run",
        "repair --watch",
        "repair --watch --dry-run",
        "repair --watch --yes --json",
        "repair --yes --every 5",
        "repair --yes --watch --per-minute 0",
        "gc --dry-run --every 5",
        "inspect bogus",
        "inspect why",
        "inspect why a b",
        "inspect --watch=0",
        "inspect graph --format png",
        "log --slowest 0",
        "log --last x",
        "log --otlp /f --failed",
        "metrics --failed",
        "policy",
        "policy why 10.0.0.1",
        "policy why web 10.0.0.1",
        "policy why 10.0.0.1 a/b http",
        "policy why 10.0.0.1 a/b 80 tcp",
        "policy watch --pod a",
    ] {
        assert!(parse(words).is_err(), "{words}");
    }
}
