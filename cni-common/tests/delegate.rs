//! Delegation, with shell scripts for IPAM plugins that write down how they were called. Requirements DLG, ERR-09.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::plugin::{Delegate, Environment, Verb};
use cni_common::spec::{AddResult, CniError, Code, NetConf, SpecVersion};

/// A folder of stubs. Each appends its verb to `calls` and keeps its environment and input before it runs its script.
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

/// Odd spacing, a duplicate key and unknown ones, so that only the very bytes are equal.
const CONFIG: &[u8] =
    b" {\"name\":\"n\", \"cniVersion\" :\"0.4.0\",\"x\":1,\"x\":1.0,\"ipam\":{\"type\":\"ipam\",\"y\":\"\\u003c\"}}\n ";

const RESULT: &str = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.5/24"}]}"#;

fn parse(config: &[u8]) -> NetConf {
    NetConf::parse(config.to_vec()).unwrap()
}

/// A hang is a failure and must not hang the tests.
fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(20)).expect("the delegation hangs")
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
        // The rest of the environment goes through: this one cargo sets for every test.
        assert!(seen.contains("CARGO_MANIFEST_DIR="));
    }
}

#[test]
fn an_add_that_fails_is_undone_and_its_error_unchanged() {
    let stubs = Stubs::ipam(
        r#"test $CNI_COMMAND = ADD || exit 0
        echo '{"cniVersion":"0.4.0","code":11,"msg":"busy","details":"pid 7"}'; exit 3"#,
    );
    let error = stubs.add_result(CONFIG).unwrap_err();
    assert_eq!(error, CniError::new(Code::TryAgainLater, "busy").with_details("pid 7"));
    assert_eq!(stubs.calls(), ["ADD", "DEL"]);
}

#[test]
fn a_failing_undo_does_not_hide_the_error() {
    let stubs = Stubs::ipam(r#"echo "{\"code\":123,\"msg\":\"$CNI_COMMAND failed\"}"; exit 1"#);
    assert_eq!(stubs.add_result(CONFIG).unwrap_err(), CniError::new(Code::from(123), "ADD failed"));
    assert_eq!(stubs.calls(), ["ADD", "DEL"]);
    // Other verbs are passed on once.
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
fn no_result_is_a_clean_error_and_undone() {
    for (script, says) in [
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
        assert!(error.msg.contains(says), "{error}");
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
        // A crash may leave a core, which is nobody's business here.
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

/// The same on standard error is tried in tests/dispatch.rs, where it does not flood the test's own.
#[test]
fn big_output_and_big_input_do_not_block_each_other() {
    let big = "head -c 1000000 /dev/zero | tr '\\0' ' '";
    let mut config = CONFIG.to_vec();
    config.extend(std::iter::repeat_n(b' ', 1_000_000));
    for (script, reads) in [
        // Output first, then input; input first; never any input.
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
fn a_binary_that_is_being_replaced_is_tried_again() {
    let stubs = Stubs::ipam(&format!("echo '{RESULT}'"));
    let writer = File::options().append(true).open(stubs.file("ipam")).unwrap();
    let busy = std::process::Command::new(stubs.file("ipam")).output();
    assert_eq!(
        busy.map(drop).unwrap_err().kind(),
        std::io::ErrorKind::ExecutableFileBusy,
        "this kernel lets a file be executed that is open for writing, so there is nothing to test"
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
fn the_first_regular_file_on_the_path_counts() {
    let (folder, stranger, wanted) = (Stubs::new(), Stubs::new(), Stubs::ipam("exit 0"));
    fs::create_dir(folder.file("ipam")).unwrap();
    stranger.add("other", "exit 1");
    let later = Stubs::ipam("exit 1");
    let all = [&folder, &stranger, &wanted, &later].map(|stubs| stubs.dir().to_str().unwrap());
    let env = Environment { path: format!("/nowhere::{}", all.join(":")), ..wanted.env() };
    let config = parse(CONFIG);
    Delegate::ipam(&env, &config).unwrap().unwrap().call(Verb::Del).unwrap();
    assert_eq!((wanted.calls().len(), later.calls().len()), (1, 0));

    // A symbolic link to a file is as good as the file.
    std::os::unix::fs::symlink(wanted.file("ipam"), stranger.file("ipam")).unwrap();
    assert!(find("ipam", stranger.dir().to_str().unwrap()).is_ok());
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
    // A file that is there and cannot be executed.
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
    // What cannot be read is not the same as none.
    for ipam in [r#""host-local""#, "5", r#"{"type":5}"#, r#"[{"type":"x"}]"#] {
        let config = parse(format!(r#"{{"name":"n","ipam":{ipam}}}"#).as_bytes());
        let error =
            Delegate::ipam(&Environment::default(), &config).map(|found| found.is_some()).unwrap_err();
        assert_eq!(error.code, Code::Decode, "{ipam}");
        assert!(error.msg.contains("ipam"), "{error}");
    }
}
