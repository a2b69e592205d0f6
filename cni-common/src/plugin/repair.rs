//! What `ferrule repair` does with one plugin of an attachment.

use super::dispatch::{check_version, on_attachment};
use super::{AddRequest, Environment, Plugin, Verb};
use crate::spec::{CniError, NetConf};

/// The outcome of [`Delegate::repair`](super::Delegate::repair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// CHECK agrees.
    Sound,
    /// CHECK refuses this, which the plugin may be able to make again.
    Possible(CniError),
    /// CHECK has refused this, and agrees now.
    Done(CniError),
    /// CHECK refuses this, and it cannot be made again.
    Failed(CniError),
    /// The program is another project's, or of another build.
    Foreign,
}

pub(super) fn repair(plugin: &Plugin, env: &Environment, config: &NetConf, dry_run: bool) -> Repair {
    let outcome = env.validate(Verb::Check).and_then(|()| {
        let version = check_version(plugin, Verb::Check, config)?;
        on_attachment(env, config, version, |call| Ok(mend(plugin, call, dry_run)))
    });
    outcome.unwrap_or_else(Repair::Failed)
}

fn mend(plugin: &Plugin, call: &AddRequest<'_>, dry_run: bool) -> Repair {
    let Err(why) = (plugin.check)(call) else { return Repair::Sound };
    let failed =
        |because: &str| Repair::Failed(CniError::internal(format!("{why}; cannot be made again: {because}")));
    match plugin.repair {
        None => failed(&format!("{} makes nothing again", plugin.name)),
        Some(_) if dry_run => Repair::Possible(why),
        Some(repair) => match repair(call).and_then(|()| (plugin.check)(call)) {
            Ok(()) => Repair::Done(why),
            Err(because) => failed(&because.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::*;
    use crate::spec::SpecVersion;

    /// The missing object: CHECK refuses 1 to 3, repair makes 1 again, and says so of 2 too.
    static MISSING: AtomicU8 = AtomicU8::new(0);

    const PLUGIN: Plugin = Plugin {
        check: |_| match MISSING.load(Relaxed) {
            0 => Ok(()),
            number => Err(CniError::internal(format!("{number} is missing"))),
        },
        repair: Some(|_| match MISSING.load(Relaxed) {
            1 => {
                MISSING.store(0, Relaxed);
                Ok(())
            }
            2 => Ok(()),
            _ => Err(CniError::internal("the port is taken")),
        }),
        spec_versions: &[SpecVersion::V0_3_1, SpecVersion::V1_0_0],
        ..Plugin::new("test", |_| Err(CniError::internal("no")), |_| Ok(()))
    };
    const WITHOUT: Plugin = Plugin { repair: None, ..PLUGIN };

    #[test]
    fn check_decides_before_and_after() {
        let env = Environment {
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
            netns: "/nowhere".to_owned(),
            ..Environment::default()
        };
        let call = |plugin: &Plugin, missing: u8, dry_run: bool| {
            MISSING.store(missing, Relaxed);
            let config = NetConf::parse(br#"{"cniVersion": "1.0.0", "name": "net"}"#.to_vec()).unwrap();
            repair(plugin, &env, &config, dry_run)
        };
        let error = |text: &str| CniError::internal(text);
        assert_eq!(call(&PLUGIN, 0, false), Repair::Sound);
        assert_eq!(call(&PLUGIN, 1, true), Repair::Possible(error("1 is missing")));
        assert_eq!(MISSING.load(Relaxed), 1);
        assert_eq!(call(&PLUGIN, 1, false), Repair::Done(error("1 is missing")));
        for (plugin, missing, why) in [
            (&PLUGIN, 2, "2 is missing; cannot be made again: 2 is missing"),
            (&PLUGIN, 3, "3 is missing; cannot be made again: the port is taken"),
            (&WITHOUT, 1, "1 is missing; cannot be made again: test makes nothing again"),
        ] {
            assert_eq!(call(plugin, missing, false), Repair::Failed(error(why)));
        }
        let old = NetConf::parse(br#"{"cniVersion": "0.3.1", "name": "net"}"#.to_vec()).unwrap();
        let nameless = Environment { container_id: String::new(), ..env.clone() };
        assert!(matches!(repair(&PLUGIN, &env, &old, false), Repair::Failed(_)), "without CHECK");
        assert!(matches!(repair(&PLUGIN, &nameless, &old, false), Repair::Failed(_)));
    }
}
