//! The settings of the container's port on the bridge.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::bridge::{self, PortSettings, Vlans};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::check;
use ferrule_kit::steps::{Step, UndoStack};
use nix::errno::Errno;

use crate::config::Conf;

/// The requests that set up a new port, whose settings are all off.
pub fn setup(conf: &Conf, bridge: &Link, port: &Link) -> Vec<Step> {
    let on = |is_on: bool| is_on.then_some(true);
    let settings = PortSettings { hairpin: on(conf.hairpin_mode), isolated: on(conf.port_isolation) };
    let mut steps = conf.vlan.steps(bridge, port);
    if settings != PortSettings::default() {
        let step = format!("set hairpin mode and isolation of {:?}", port.name);
        steps.push(Step::new(step, settings.request(port.index)));
    }
    steps
}

/// The request that gives an existing port its settings again, if CHECK refuses them. Isolation stays: see [`check()`].
pub fn restore(conf: &Conf, port: &Link) -> Option<Step> {
    check(port, conf).is_err().then(|| {
        let isolated = conf.port_isolation.then_some(true);
        let settings = PortSettings { hairpin: Some(conf.hairpin_mode), isolated };
        Step::new(format!("set hairpin mode and isolation of {:?}", port.name), settings.request(port.index))
    })
}

/// Puts the port into its VLANs, and takes it out of those that CHECK refuses.
pub fn restore_vlans(socket: &mut Socket, bridge: &Link, port: &Link, conf: &Conf) -> Result<(), CniError> {
    if !conf.vlan.needs_filtering() {
        return Ok(());
    }
    let name = &port.name;
    let present = socket.vlans(port.index).context(|| format!("list the VLANs of {name:?}"))?;
    if conf.vlan.check_port(bridge, name, &present).is_ok() {
        return Ok(());
    }
    let leave = |vlans: &Vlans| {
        let step = format!("take {name:?} out of VLAN {}", vlans.first);
        Step::new(step, bridge::delete_vlans(port.index, &[*vlans])).unless(&[Errno::ENOENT])
    };
    let mut steps: Vec<Step> = conf.vlan.foreign(bridge, &present).map(leave).collect();
    steps.extend(conf.vlan.steps(bridge, port));
    UndoStack::default().run(socket, steps)?;
    Ok(())
}

/// Checks that the port is isolated if the configuration says so. ADD needs this too: kernels before 4.18
/// ignore the request.
pub fn check_isolation(port: &Link, conf: &Conf) -> Result<(), CniError> {
    check::ensure(!conf.port_isolation || port.port.isolated == Some(true), || {
        format!("bridge port {:?} is not isolated, configuration says portIsolation", port.name)
    })
}

/// Compares the port's VLANs with the configuration.
pub fn check_vlans(socket: &mut Socket, bridge: &Link, port: &Link, conf: &Conf) -> Result<(), CniError> {
    if !conf.vlan.needs_filtering() {
        return Ok(());
    }
    let present = socket.vlans(port.index).context(|| format!("list the VLANs of {:?}", port.name))?;
    conf.vlan.check_port(bridge, &port.name, &present)
}

/// Compares the port's settings with the configuration. The chained plugin `firewall` may have isolated it too.
pub fn check(port: &Link, conf: &Conf) -> Result<(), CniError> {
    let (name, is, wanted) = (&port.name, port.port.hairpin.unwrap_or_default(), conf.hairpin_mode);
    check::ensure(is == wanted, || {
        format!("bridge port {name:?} has hairpin mode {is}, configuration says {wanted}")
    })?;
    check_isolation(port, conf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_settings_needs_no_request() {
        let port = Link { index: 3, name: "veth1".to_owned(), ..Link::default() };
        let requests = |conf: Conf| setup(&conf, &Link::default(), &port).len();
        assert_eq!(requests(Conf::default()), 0);
        assert_eq!(requests(Conf { hairpin_mode: true, port_isolation: true, ..Conf::default() }), 1);
    }

    #[test]
    fn another_plugin_may_isolate_the_port() {
        let port = |isolated| Link { port: PortSettings { hairpin: None, isolated }, ..Link::default() };
        let conf = Conf { port_isolation: true, ..Conf::default() };
        assert!(check(&port(Some(true)), &conf).is_ok());
        assert!(check(&port(Some(true)), &Conf::default()).is_ok());
        assert!(check(&port(None), &conf).is_err() && check(&port(Some(false)), &conf).is_err());
    }
}
