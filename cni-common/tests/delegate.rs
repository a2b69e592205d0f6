//! Tests of delegation. The IPAM plugins are shell scripts that record how they were called. Requirements
//! DLG, ERR-09.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::plugin::{Delegate, Environment, Verb};
use cni_common::spec::{AddResult, CniError, Code, NetConf, SpecVersion};

/// A directory of stub plugins. Each appends its verb to `calls` and saves its environment in `env.VERB`
/// before it runs its script.
struct Stubs(tempfile::TempDir);

impl Stubs {
    fn new() -> Self {
        Stubs(tempfile::tempdir().unwrap())
    }

    /// One stub called `ipam`.
    fn ipam(script: &str) -> Self {
        let stubs = Stubs::new();
        stubs.add("ipam", script);
        stubs
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn add(&self, name: &str, script: &str) {
        let keep = "cd \"${0%/*}\"; echo $CNI_COMMAND >> calls; env > env.$CNI_COMMAND";
        fs::write(self.file(name), format!("#!/bin/sh\n{keep}\n{script}\n")).unwrap();
        fs::set_permissions(self.file(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn env(&self) -> Environment {
        Environment {
            command: "ADD".into(),
            container_id: "c1".into(),
            netns: "/run/netns/with space".into(),
            ifname: "eth0".into(),
            args: "IgnoreUnknown=1;K8S_POD_NAME=web".into(),
            path: self.dir().display().to_string(),
            ..Environment::default()
        }
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.file("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn add_result(&self, config: &[u8]) -> Result<AddResult, CniError> {
        let (env, config) = (self.env(), parse(config));
        within_limit(move || Delegate::ipam(&env, &config)?.unwrap().add(SpecVersion::V0_4_0))
    }

    fn call(&self, verb: Verb) -> Result<(), CniError> {
        let (env, config) = (self.env(), parse(CONFIG));
        within_limit(move || Delegate::ipam(&env, &config)?.unwrap().call(verb))
    }
}

/// Has unusual spacing, a duplicate key and unknown keys, so that a re-encoded copy would have different
/// bytes.
const CONFIG: &[u8] =
    b" {\"name\":\"n\", \"cniVersion\" :\"0.4.0\",\"x\":1,\"x\":1.0,\"ipam\":{\"type\":\"ipam\",\"y\":\"\\u003c\"}}\n ";

const RESULT: &str = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.5/24"}]}"#;

fn parse(config: &[u8]) -> NetConf {
    NetConf::parse(config.to_vec()).unwrap()
}

/// Runs `work` in a thread and panics after 20 s, so that a hang fails the test.
fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(20)).expect("the delegation took more than 20 s")
}

fn find(name: &str, path: &str) -> Result<(), CniError> {
    let env = Environment { path: path.into(), ..Environment::default() };
    Delegate::find(name, &env, &parse(CONFIG)).map(drop)
}

#[test]
fn the_delegate_gets_the_same_input_and_environment() {
    let stubs =
        Stubs::ipam(&format!("cat > stdin.$CNI_COMMAND; test $CNI_COMMAND = ADD && echo '{RESULT}'; exit 0"));
    let result = stubs.add_result(CONFIG).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.1.0.5/24");
    for verb in [Verb::Check, Verb::Del, Verb::Gc, Verb::Status] {
        stubs.call(verb).unwrap();
    }
    assert_eq!(stubs.calls(), ["ADD", "CHECK", "DEL", "GC", "STATUS"]);
    for verb in stubs.calls() {
        assert_eq!(fs::read(stubs.file(&format!("stdin.{verb}"))).unwrap(), CONFIG, "{verb}");
        let seen = fs::read_to_string(stubs.file(&format!("env.{verb}"))).unwrap();
        let cni: Vec<&str> = seen.lines().filter(|line| line.starts_with("CNI_")).collect();
        for (name, value) in [
            ("CNI_COMMAND", verb.as_str()),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/with space"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web"),
            ("CNI_PATH", stubs.dir().to_str().unwrap()),
        ] {
            assert!(cni.contains(&format!("{name}={value}").as_str()), "{name} in {cni:?}");
        }
        assert_eq!(cni.len(), 6);
        // All other variables are inherited. Cargo sets this one for every test.
        assert!(seen.contains("CARGO_MANIFEST_DIR="));
    }
}

#[test]
fn a_failed_add_is_followed_by_del_and_returns_its_error() {
    let stubs = Stubs::ipam(
        r#"test $CNI_COMMAND = ADD || exit 0
        echo '{"cniVersion":"0.4.0","code":11,"msg":"busy","details":"pid 7"}'; exit 3"#,
    );
    let error = stubs.add_result(CONFIG).unwrap_err();
    assert_eq!(error, CniError::new(Code::TryAgainLater, "busy").with_details("pid 7"));
    assert_eq!(stubs.calls(), ["ADD", "DEL"]);
}

#[test]
fn a_failed_del_does_not_hide_the_error_of_add() {
    let stubs = Stubs::ipam(r#"echo "{\"code\":123,\"msg\":\"$CNI_COMMAND failed\"}"; exit 1"#);
    assert_eq!(stubs.add_result(CONFIG).unwrap_err(), CniError::new(Code::from(123), "ADD failed"));
    assert_eq!(stubs.calls(), ["ADD", "DEL"]);
    // Other verbs are called once, without a DEL.
    assert_eq!(stubs.call(Verb::Del).unwrap_err().msg, "DEL failed");
    assert_eq!(stubs.call(Verb::Status).unwrap_err().msg, "STATUS failed");
    assert_eq!(stubs.calls(), ["ADD", "DEL", "DEL", "STATUS"]);
}

#[test]
fn results_without_a_version_and_null() {
    for (printed, addresses) in
        [(r#"{"ips":[{"address":"10.1.0.5/24"}]}"#, 1), ("null", 0), ("{}", 0), (RESULT, 1)]
    {
        let stubs = Stubs::ipam(&format!("echo '{printed}'"));
        assert_eq!(stubs.add_result(CONFIG).unwrap().ips.len(), addresses, "{printed}");
        assert_eq!(stubs.calls(), ["ADD"]);
    }
}

#[test]
fn an_invalid_result_is_an_error_and_followed_by_del() {
    for (script, reason) in [
        ("echo junk", "malformed JSON"),
        ("true", "malformed JSON"),
        ("echo 5", "expected"),
        (r#"echo '{"cniVersion":"9.9.9"}'"#, "9.9.9"),
        (r#"echo '{"ips":[{"address":"x"}]}'"#, "invalid CIDR address: x"),
        (&format!("echo '{RESULT}{RESULT}'"), "malformed JSON"),
    ] {
        let stubs = Stubs::ipam(script);
        let error = stubs.add_result(CONFIG).unwrap_err();
        assert_eq!(error.code, Code::Internal);
        assert!(
            error.msg.starts_with("failed to decode the result of /") && error.msg.contains("/ipam: "),
            "{error}"
        );
        assert!(error.msg.contains(reason), "{error}");
        assert_eq!(stubs.calls(), ["ADD", "DEL"], "{script}");
    }
}

#[test]
fn failures_without_an_error_object() {
    for (script, msg) in [
        ("exit 2", "netplugin failed with no error message: exit status: 2"),
        ("kill -9 $$", "netplugin failed with no error message: signal: 9 (SIGKILL)"),
        ("echo why >&2; exit 1", r#"netplugin failed: "why": exit status: 1"#),
        ("echo why >&2; kill -11 $$", r#"netplugin failed: "why": signal: 11 (SIGSEGV)"#),
        (
            "echo hello; exit 1",
            r#"netplugin failed but error parsing its diagnostic message "hello": exit status: 1"#,
        ),
    ] {
        let error = Stubs::ipam(script).add_result(CONFIG).unwrap_err();
        // Whether a crash dumps core depends on the system.
        assert_eq!(
            (error.code, error.msg.replace(" (core dumped)", "")),
            (Code::Internal, msg.into()),
            "{script}"
        );
    }
}

#[test]
fn an_error_object_without_a_message_keeps_its_code() {
    let stubs = Stubs::ipam(r#"echo '{"code":11}'; exit 1"#);
    let error = stubs.call(Verb::Check).unwrap_err();
    assert_eq!(error.code, Code::TryAgainLater);
    assert_eq!(error.msg, "netplugin failed with no error message: exit status: 1");
}

/// tests/dispatch.rs has the same test for standard error: there the output does not fill the log of this
/// test.
#[test]
fn large_output_and_large_input_do_not_deadlock() {
    let big = "head -c 1000000 /dev/zero | tr '\\0' ' '";
    let mut config = CONFIG.to_vec();
    config.extend(std::iter::repeat_n(b' ', 1_000_000));
    for (script, reads) in [
        // Writes before it reads; reads before it writes; does not read; closes its input.
        (format!("{big}; cat > stdin; echo '{RESULT}'"), true),
        (format!("cat > stdin; {big}; echo '{RESULT}'"), true),
        (format!("{big}; echo '{RESULT}'"), false),
        (format!("exec <&-; sleep 0.2; echo '{RESULT}'"), false),
    ] {
        let stubs = Stubs::ipam(&script);
        assert_eq!(stubs.add_result(&config).unwrap().ips.len(), 1, "{script}");
        if reads {
            assert_eq!(fs::read(stubs.file("stdin")).unwrap(), config);
        }
    }
    let failing = Stubs::ipam(&format!("{big}; echo '{{\"code\":7,\"msg\":\"no\"}}'; exit 1"));
    assert_eq!(failing.add_result(&config).unwrap_err(), CniError::invalid_config("no"));
}

#[test]
fn retries_while_the_file_is_open_for_writing() {
    let stubs = Stubs::ipam(&format!("echo '{RESULT}'"));
    let writer = File::options().append(true).open(stubs.file("ipam")).unwrap();
    let busy = std::process::Command::new(stubs.file("ipam")).output();
    assert_eq!(
        busy.map(drop).unwrap_err().kind(),
        std::io::ErrorKind::ExecutableFileBusy,
        "this kernel executes a file that is open for writing (no ETXTBSY), so this test cannot run"
    );
    let start = Instant::now();
    let closes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop(writer);
    });
    assert_eq!(stubs.add_result(CONFIG).unwrap().ips.len(), 1);
    assert!(start.elapsed() >= Duration::from_millis(300));
    closes.join().unwrap();
}

#[test]
fn finds_the_first_regular_file_in_cni_path() {
    let (directory, other, wanted) = (Stubs::new(), Stubs::new(), Stubs::ipam("exit 0"));
    fs::create_dir(directory.file("ipam")).unwrap();
    other.add("other", "exit 1");
    let later = Stubs::ipam("exit 1");
    let all = [&directory, &other, &wanted, &later].map(|stubs| stubs.dir().to_str().unwrap());
    let env = Environment { path: format!("/nowhere::{}", all.join(":")), ..wanted.env() };
    let config = parse(CONFIG);
    Delegate::ipam(&env, &config).unwrap().unwrap().call(Verb::Del).unwrap();
    assert_eq!((wanted.calls().len(), later.calls().len()), (1, 0));

    // A symbolic link to a regular file counts too.
    std::os::unix::fs::symlink(wanted.file("ipam"), other.file("ipam")).unwrap();
    assert!(find("ipam", other.dir().to_str().unwrap()).is_ok());
}

#[test]
fn a_delegate_that_cannot_be_found() {
    let stubs = Stubs::new();
    let dir = stubs.dir().to_str().unwrap();
    let error = find("ipam", &format!("/nowhere:{dir}")).unwrap_err();
    assert_eq!(error.msg, format!(r#"failed to find plugin "ipam" in path [/nowhere {dir}]"#));
    for name in ["../ipam", "/bin/sh", "a/b", "/"] {
        let error = find(name, dir).unwrap_err();
        assert_eq!((error.code, error.msg), (Code::InvalidConfig, format!("invalid plugin name: {name}")));
    }
    for name in [".", ".."] {
        assert!(find(name, dir).unwrap_err().msg.starts_with("failed to find plugin"), "{name}");
    }
    assert_eq!(find("", dir).unwrap_err().msg, "no plugin name provided");
    for path in ["", ":", "::"] {
        let error = find("ipam", path).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::InvalidEnvironment, "no paths provided"));
        assert!(error.details.contains("CNI_PATH"), "{error}");
    }
    // The file exists but is not executable.
    fs::write(stubs.file("ipam"), "data").unwrap();
    let error = stubs.add_result(CONFIG).unwrap_err();
    assert!(error.msg.starts_with(&format!("failed to run plugin {dir}/ipam: ")), "{error}");
}

#[test]
fn a_network_without_ipam() {
    for ipam in ["", r#","ipam":null"#, r#","ipam":{}"#, r#","ipam":{"type":""}"#, r#","ipam":{"type":null}"#]
    {
        let config = parse(format!(r#"{{"name":"n"{ipam}}}"#).as_bytes());
        assert!(Delegate::ipam(&Environment::default(), &config).unwrap().is_none(), "{ipam}");
    }
    // An `ipam` that cannot be decoded is an error.
    for ipam in [r#""host-local""#, "5", r#"{"type":5}"#, r#"[{"type":"x"}]"#] {
        let config = parse(format!(r#"{{"name":"n","ipam":{ipam}}}"#).as_bytes());
        let error =
            Delegate::ipam(&Environment::default(), &config).map(|found| found.is_some()).unwrap_err();
        assert_eq!(error.code, Code::Decode, "{ipam}");
        assert!(error.msg.contains("ipam"), "{error}");
    }
}
