//! The file of the conflist.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::file;
use ferrule_kit::fold::{first, unfolded};
use nix::sys::inotify::AddWatchFlags;
use serde_json::Value;
use tokio::io::unix::AsyncFd;

use super::MARK;
use crate::plan::Pods;

/// Whose file has the conflist's name.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    /// No file has it.
    Nothing,
    /// A file with [`MARK`].
    Ours(Value),
    /// Another file, or a link.
    Foreign,
}

fn find(path: &Path) -> Result<Found> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
        Ok(metadata) if !metadata.is_file() => return Ok(Found::Foreign),
        Ok(_) => {}
    }
    let bytes = file::read(path).with_context(|| format!("read {}", path.display()))?;
    let ours = serde_json::from_slice::<Value>(&bytes).ok().filter(|value| value[MARK].is_object());
    Ok(ours.map_or(Found::Foreign, Found::Ours))
}

/// Whether the file is there and ours.
pub fn is_ours(path: &Path) -> bool {
    matches!(find(path), Ok(Found::Ours(_)))
}

/// Whether the file is ours and has a plugin of this type.
pub fn has(path: &Path, plugin: &str) -> bool {
    let Ok(Found::Ours(list)) = find(path) else { return false };
    unfolded(list)["plugins"].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == plugin))
}

/// Writes the conflist if the file has another one. Plugins that another program has appended behind ours stay there. Returns whether it did.
///
/// # Errors
/// The file is not ours, or cannot be written.
pub fn write(path: &Path, conflist: &Value) -> Result<bool> {
    let found = find(path)?;
    let mut wanted = conflist.clone();
    match &found {
        Found::Foreign => bail!(
            "{} is not ours: it has no key \"{MARK}\". Remove it, or choose another --conflist",
            path.display()
        ),
        Found::Ours(former) => {
            if let Some(plugins) = wanted["plugins"].as_array_mut() {
                plugins.extend(appended(former).iter().cloned());
            }
            if *former == wanted {
                return Ok(false);
            }
        }
        Found::Nothing => {}
    }
    let text = format!("{wanted:#}\n");
    let put = || -> io::Result<()> {
        let pending = pending(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match found {
            Found::Ours(_) => file::replace_durably(path, &pending, 0o644, text.as_bytes()),
            // Fails if another program has made the file meanwhile.
            _ => file::create_durably(path, &pending, 0o644, text.as_bytes()),
        }
    };
    put().with_context(|| format!("write {}", path.display())).map(|()| true)
}

/// The plugins behind ours, which the mark names. None if ours are no longer the first ones, or one is such that a runtime would refuse
/// the whole file.
fn appended(conflist: &Value) -> &[Value] {
    let [ours, plugins] = [&conflist[MARK]["plugins"], &conflist["plugins"]].map(|list| list.as_array());
    let (Some(ours), Some(plugins)) = (ours, plugins) else { return &[] };
    let Some((first, rest)) = plugins.split_at_checked(ours.len()) else { return &[] };
    let is_type = |plugin: &Value| plugin["type"].as_str().is_some_and(|name| !name.is_empty());
    let is_ours = !first.is_empty() && first.iter().zip(ours).all(|(plugin, name)| plugin["type"] == *name);
    if is_ours && rest.iter().all(is_type) { rest } else { &[] }
}

/// A descriptor that is readable when the file has been changed, moved or removed.
///
/// # Errors
/// It is gone already, or this user has too many of them.
pub fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    // The kernel tells of a name that is removed as a change of the attributes, and at once.
    ferrule_daemon::watch(
        path,
        AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF,
    )
}

/// A descriptor that is readable when the conflist's folder has got or lost a file: runtimes take the first one.
///
/// # Errors
/// There is no folder, or this user has too many descriptors.
pub fn watch_folder(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let moved = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MOVED_FROM;
    ferrule_daemon::watch(
        path.parent().unwrap_or(path),
        AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | moved,
    )
}

/// Removes the conflist if it is ours and has other networks: it could not be replaced, and its addresses are another node's. Returns
/// whether it did.
pub fn remove_other(path: &Path, pods: &Pods) -> Result<bool> {
    let value: Value = serde_json::from_slice(&file::read(path)?)?;
    let ranges = first(&value)["ipam"]["ranges"].as_array().into_iter().flatten();
    let subnets: Vec<_> = ranges.map(|range| range[0]["subnet"].as_str().unwrap_or_default()).collect();
    let wanted: Vec<_> = pods.networks.iter().map(ToString::to_string).collect();
    if subnets == wanted { Ok(false) } else { remove(path) }
}

/// Removes the conflist if it is ours. Returns whether it was there.
pub fn remove(path: &Path) -> Result<bool> {
    let _ = fs::remove_file(pending(path));
    let Found::Ours(_) = find(path)? else { return Ok(false) };
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(true)
}

/// Runtimes read files with the extensions conf, conflist and json only.
fn pending(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::arguments::{Arguments, Options, Policies};
    use crate::conflist::{Form, Kind, Template};

    fn pods(mtu: u32) -> Pods {
        Pods { networks: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()], mtu }
    }

    fn conflist(form: Form, mtu: u32) -> Value {
        Template::built_in(Kind::Bridge, form, Policies::Off).value("n1", &pods(mtu))
    }

    #[test]
    fn only_our_file_is_replaced_and_only_by_another_conflist() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.d/10-ferrule.conflist");
        assert_eq!(find(&path).unwrap(), Found::Nothing);
        for form in [Form::List, Form::Chain] {
            let conflist = |mtu| conflist(form, mtu);
            assert!(write(&path, &conflist(1450)).unwrap() && is_ours(&path));
            assert!(has(&path, "portmap") && !has(&path, "policy"));
            assert!(!write(&path, &conflist(1450)).unwrap());
            assert!(write(&path, &conflist(1400)).unwrap());
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file stays");
            let other = Pods { networks: vec!["10.244.9.0/24".parse().unwrap()], mtu: 1450 };
            assert!(!remove_other(&path, &pods(1450)).unwrap() && remove_other(&path, &other).unwrap());
            assert!(write(&path, &conflist(1450)).unwrap());
            assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        }
        for foreign in ["{}", "no JSON", "{\"ferruleNode\":1}"] {
            fs::write(&path, foreign).unwrap();
            let error = write(&path, &conflist(Form::List, 1450)).unwrap_err().to_string();
            assert!(error.contains("is not ours"), "{error}");
            assert!(!remove(&path).unwrap() && !has(&path, "portmap"));
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn what_others_append_stays_behind_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("10-ferrule.conflist");
        let read = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
        let foreign = json!({ "type": "istio-cni", "kubernetes": { "kubeconfig": "/etc/k" } });
        for (form, count) in [(Form::List, 3), (Form::Chain, 1)] {
            write(&path, &conflist(form, 1450)).unwrap();
            let mut edited = read();
            edited["plugins"].as_array_mut().unwrap().push(foreign.clone());
            // Another program writes JSON in a form of its own.
            fs::write(&path, edited.to_string()).unwrap();
            assert!(!write(&path, &conflist(form, 1450)).unwrap());
            // Another MTU, and the other form.
            let other = if form == Form::List { Form::Chain } else { Form::List };
            for (form, count, mtu) in [(form, count, 1400), (other, 4 - count, 1450)] {
                assert!(write(&path, &conflist(form, mtu)).unwrap());
                let plugins = read()["plugins"].as_array().unwrap().clone();
                assert_eq!((plugins.len(), plugins.last()), (count + 1, Some(&foreign)));
            }
            // Its own end takes it out again.
            write(&path, &conflist(form, 1450)).unwrap();
            let mut edited = read();
            edited["plugins"].as_array_mut().unwrap().pop();
            fs::write(&path, edited.to_string()).unwrap();
            assert!(!write(&path, &conflist(form, 1450)).unwrap());
            // Anything else is undone: a place before ours, an object without a type, and what a file of a former release has.
            for change in [
                |file: &mut Value| file["plugins"].as_array_mut().unwrap().insert(0, json!({ "type": "x" })),
                |file: &mut Value| file["plugins"].as_array_mut().unwrap().push(json!({ "type": "" })),
                |file: &mut Value| {
                    file[MARK] = json!({ "node": "n1" });
                    file["plugins"].as_array_mut().unwrap().push(json!({ "type": "x" }));
                },
            ] {
                let mut edited = read();
                change(&mut edited);
                fs::write(&path, edited.to_string()).unwrap();
                assert!(write(&path, &conflist(form, 1450)).unwrap());
                assert_eq!(read(), conflist(form, 1450));
            }
            remove(&path).unwrap();
        }
    }

    #[test]
    fn a_link_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.conflist");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(find(&path).unwrap(), Found::Foreign);
    }

    /// Also a template may be one: Kubernetes mounts a ConfigMap as links.
    #[test]
    fn a_planted_link_is_not_followed_and_no_second_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [path, target] = ["10-ferrule.conflist", "target"].map(|name| folder.path().join(name));
        for mtu in [1450, 1400] {
            std::os::unix::fs::symlink(&target, pending(&path)).unwrap();
            assert!(write(&path, &conflist(Form::Chain, mtu)).unwrap());
            let meta = fs::symlink_metadata(&path).unwrap();
            assert_eq!((meta.is_file(), meta.nlink(), target.exists()), (true, 1, false));
        }
        std::os::unix::fs::symlink(&path, &target).unwrap();
        let options = Options { template: Some(target), ..Arguments::parse_from(["x"]).options };
        assert!(Template::read(&options).is_ok());
    }
}
